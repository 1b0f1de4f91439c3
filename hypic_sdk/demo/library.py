"""A small library of readable documents, and questions that the reader answers from them.

`hypic demo` and the quickstart use it. The texts keep to the relations of `relations`. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypic_sdk.demo.relations import RELATIONS

SYSTEM = "Answer from the documents."
GLUE = "\n\n"


@dataclass(frozen=True, slots=True)
class LibraryQuestion:
    """A question, the documents to ask it of (in this order), and the expected answer."""

    text: str
    documents: tuple[str, ...]  # keys of DOCUMENTS
    answer: str


#: name to text; every text is long enough to be kept as a segment
DOCUMENTS: Mapping[str, str] = {
    "ada": (
        "About Ada Lindqvist\n"
        "Ada Lindqvist was born in Norwick. She works as a carpenter. She lives in Halden, "
        "and her favourite colour is green. Her pet is called Bisko. The weather was pleasant "
        "in the autumn. Ada Lindqvist works for Brenholt Foods. Her phone extension is 4182. "
        "Ada's locker code is K7731. Many people liked the old mill. In her free time, she "
        "enjoys archery."
    ),
    "tomas": (
        "About Tomas Velden\n"
        "Tomas Velden is 52 years old. He is an engineer by profession. His home is in Marlow "
        "Bay. Tomas Velden plays the cello. His favourite food is mushroom stew. It rained "
        "during the holidays. He is married to Irene Castel. His mentor is Gustav Orlen. "
        "Tomas Velden can be reached at extension 7306. His office is in the map room."
    ),
    "irene": (
        "About Irene Castel\n"
        "Irene Castel was born in 1981. She is a librarian by profession. Irene Castel speaks "
        "Danish, and her favourite drink is mint tea. She keeps a parrot as a pet. The road "
        "near the church was repaired after lunch. Irene Castel lives in Ostermere. Her "
        "locker code is TM204. She is employed by Karst Mills. Her hobby is stargazing."
    ),
    "gustav": (
        "About Gustav Orlen\n"
        "Gustav Orlen was born in the town of Ostermere. He earns a living as a clockmaker. "
        "His favourite colour is amber. Gustav Orlen has a dog. His pet is named Rusk. The "
        "garden was quiet before dawn. He is 78 years old. Gustav Orlen plays the organ. He "
        "works for Pellam Optics. His phone extension is 1550. His favourite food is plum "
        "cake."
    ),
    "brenholt": (
        "About Brenholt Foods\n"
        "Brenholt Foods was founded in 1921. The company is based in Halden. Brenholt Foods "
        "makes chocolates. It is led by Tomas Velden. It has 340 employees. The concert was "
        "postponed on Friday. The supplier of Brenholt Foods is Karst Mills. People talked "
        "about the new bridge at the end of the month."
    ),
    "karst": (
        "About Karst Mills\n"
        "Karst Mills was established in 1874. The headquarters of Karst Mills are in "
        "Ostermere. The company is run by Lena Marek. Karst Mills produces blankets. The "
        "staff of Karst Mills numbers 95. The window of the inn was painted over the winter. "
        "The main road was closed, but the ferry was not. Its supplier is Dorrin Tools."
    ),
    "pellam": (
        "About Pellam Optics\n"
        "Pellam Optics was set up in 1958. Pellam Optics has its headquarters in Norwick. The "
        "main product of Pellam Optics is telescopes. The director of Pellam Optics is Sofia "
        "Brandt. The firm employs 62 people. A narrow path is better than a muddy road. The "
        "exhibition was praised in late June. The company gets its parts from Dorrin Tools."
    ),
    "halden": (
        "About Halden\n"
        "Halden lies on the river Sorel. The town is known for its lighthouse. The mayor of "
        "Halden is Peter Lang. Halden is a town in Marrovia. It has 8400 inhabitants. The "
        "harvest was early, and the summer was warm. Photographs of the square hang near the "
        "museum. Halden has a market that was visited on the first Sunday."
    ),
    "ostermere": (
        "About Ostermere\n"
        "The river that flows through Ostermere is the Elven. Ostermere is famous for its "
        "clock tower. It lies in the region of Westonia. Ostermere elected Nora Finch as "
        "mayor. The population of Ostermere is 15200. The fog was heavy in early May. "
        "Somebody left a note about the ferry. The story of the ancient inn is told in the "
        "evening."
    ),
    "norwick": (
        "About Norwick\n"
        "Norwick stands on the banks of the Tarn. Visitors come to Norwick because of its "
        "puppet theatre. The region of Norwick is Marrovia. The mayor of Norwick is Emil "
        "Stroud. Norwick has a population of 23050. The train was crowded that week. The "
        "committee was praised because the garden was clean. Not much is known about the "
        "archive."
    ),
    "lantern": (
        "About the Orrin lantern\n"
        "The Orrin lantern is made of brass. It weighs 12 kilograms. The Orrin lantern is "
        "stored in the map room. Its keeper is Irene Castel. The colour of the Orrin lantern "
        "is copper. The Orrin lantern costs 275 crowns. Nobody knew why the corridor was "
        "closed. The inventory number of the Orrin lantern is B5120."
    ),
    "clock": (
        "About the Fenwold clock\n"
        "The Fenwold clock stands in the reading room. The material of the Fenwold clock is "
        "walnut. Gustav Orlen takes care of the Fenwold clock. The price of the Fenwold clock "
        "is 1640 crowns. Its weight is 38 kilograms. The storm was heavy two days later. The "
        "Fenwold clock is painted black. It has the inventory number H77. The letter was "
        "discussed on Monday."
    ),
    "atlas": (
        "About the Belmar atlas\n"
        "The Belmar atlas can be found in the archive. It is made of paper. The keeper of the "
        "Belmar atlas is Sofia Brandt. The Belmar atlas is blue. It is worth 90 crowns. Its "
        "weight is 4 kilograms. The staircase near the museum was decorated last spring. In "
        "the catalogue, the Belmar atlas is number A310. The visitor was friendly, and the "
        "child was curious."
    ),
    "news": (
        "Letter 14\n"
        "The festival was praised on the first Sunday. Update: Ada Lindqvist lives in "
        "Norwick. As of this week, the Orrin lantern is stored in the north hall. The road "
        "was muddy, and the boat was slow. From now on, Tomas Velden can be reached at "
        "extension 2244. The market near the square was closed at noon. Many people liked the "
        "bright lake."
    ),
}

QUESTIONS: tuple[LibraryQuestion, ...] = (
    LibraryQuestion("What is Ada Lindqvist's locker code?", ("ada", "tomas", "brenholt"), "K7731"),
    LibraryQuestion("Who is Tomas Velden married to?", ("ada", "tomas", "irene"), "Irene Castel"),
    LibraryQuestion("When was Brenholt Foods founded?", ("brenholt", "karst", "pellam"), "1921"),
    LibraryQuestion("What does Pellam Optics make?", ("karst", "pellam", "brenholt"), "telescopes"),
    LibraryQuestion(
        "Which river flows through Halden?", ("ostermere", "halden", "norwick"), "Sorel"
    ),
    LibraryQuestion(
        "Who is the mayor of Ostermere?", ("halden", "norwick", "ostermere"), "Nora Finch"
    ),
    LibraryQuestion(
        "Where is the Orrin lantern stored?", ("clock", "lantern", "atlas"), "map room"
    ),
    LibraryQuestion("How many kilograms does the Fenwold clock weigh?", ("lantern", "clock"), "38"),
    LibraryQuestion("What pet does Irene Castel have?", ("gustav", "irene", "ada"), "parrot"),
    LibraryQuestion(
        "What is Gustav Orlen's job?", ("gustav", "tomas", "clock", "irene"), "clockmaker"
    ),
    LibraryQuestion("Where does Ada Lindqvist live?", ("ada", "halden", "news"), "Norwick"),
    LibraryQuestion("Who leads Karst Mills?", ("karst", "ada", "halden", "lantern"), "Lena Marek"),
    LibraryQuestion(
        "What is Gustav Orlen's locker code?", ("gustav", "ada"), "The documents do not say."
    ),
    LibraryQuestion(
        "Where is the company that Ada Lindqvist works for based?",
        ("ada", "brenholt", "karst"),
        "Brenholt Foods: Halden",
    ),
)


def example_sentences() -> dict[str, tuple[str, str]]:
    """Return for every relation a sentence that states it and a question that asks for it."""
    return {
        key: (relation.example_statement, relation.example_question)
        for key, relation in RELATIONS.items()
    }
