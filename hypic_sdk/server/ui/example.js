// A few documents of the packaged library, and a question that the packaged model answers from them.

export const EXAMPLE = {
  system: "Answer from the documents.",
  question: "How many kilograms does the Fenwold clock weigh?",
  documents: [
    {
      title: "The Orrin lantern",
      text:
        "About the Orrin lantern\n" +
        "The Orrin lantern is made of brass. It weighs 12 kilograms. The Orrin lantern is " +
        "stored in the map room. Its keeper is Irene Castel. The colour of the Orrin lantern " +
        "is copper. The Orrin lantern costs 275 crowns. Nobody knew why the corridor was " +
        "closed. The inventory number of the Orrin lantern is B5120.",
    },
    {
      title: "The Fenwold clock",
      text:
        "About the Fenwold clock\n" +
        "The Fenwold clock stands in the reading room. The material of the Fenwold clock is " +
        "walnut. Gustav Orlen takes care of the Fenwold clock. The price of the Fenwold clock " +
        "is 1640 crowns. Its weight is 38 kilograms. The storm was heavy two days later. The " +
        "Fenwold clock is painted black. It has the inventory number H77. The letter was " +
        "discussed on Monday.",
    },
    {
      title: "Ada Lindqvist",
      text:
        "About Ada Lindqvist\n" +
        "Ada Lindqvist was born in Norwick. She works as a carpenter. She lives in Halden, " +
        "and her favourite colour is green. Her pet is called Bisko. The weather was pleasant " +
        "in the autumn. Ada Lindqvist works for Brenholt Foods. Her phone extension is 4182. " +
        "Ada's locker code is K7731. Many people liked the old mill. In her free time, she " +
        "enjoys archery.",
    },
  ],
};
