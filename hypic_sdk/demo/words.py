"""Words that invented worlds are made of: names, closed value lists, syllables.

First names and surnames are a sample of the US lists of Faker (MIT licence); the rest was written
for this package. Standard library only.
"""

from __future__ import annotations

#: first names taken up by "she"
FEMALE_NAMES: tuple[str, ...] = tuple(
    """
Abigail Aimee Alejandra Alexa Alexandra Alexandria Alice Alicia Alisha Alison Amanda Amber Amy
Ana Andrea Angela Angelica Ann Anne Ariel Ashlee Ashley Audrey Autumn Bailey Barbara Belinda
Bethany Betty Beverly Bianca Bonnie Brandi Brandy Breanna Brenda Briana Brianna Bridget Brittany
Brittney Brooke Caitlyn Candace Candice Carly Carol Carolyn Carrie Cassidy Cathy Charlotte
Chelsea Chelsey Cheyenne Chloe Christie Christine Cindy Colleen Connie Courtney Cristina Cynthia
Daisy Dana Dawn Deanna Debbie Deborah Debra Denise Desiree Diane Donna Dorothy Ebony Eileen
Elaine Elizabeth Ellen Erika Erin Evelyn Faith Frances Gabriela Gabriella Gina Glenda Grace
Hailey Haley Hayley Heather Holly Isabel Isabella Jackie Jaclyn Jacqueline Jade Jane Janet
Janice Jasmin Jeanette Jenna Jennifer Jenny Jill Jo Joan Joann Joanna Jocelyn Jodi Joyce Judith
Judy Julia Julie Kaitlin Kaitlyn Kara Karen Kari Karina Karla Katelyn Katherine Kathleen Kathy
Katie Katrina Kaylee Kelli Kim Kimberly Kristen Kristi Kristin Kristina Kristy Krystal Kylie
Lacey Latoya Laura Lauren Laurie Leah Linda Lindsey Lisa Loretta Lori Lorraine Lydia Lynn
Madeline Madison Makayla Mallory Mandy Margaret Maria Marie Marilyn Marisa Maureen Mckenzie
Meagan Megan Melanie Melinda Melissa Melody Mercedes Mia Miranda Molly Monica Nancy Natalie
Natasha Nichole Nicole Nina Olivia Paige Pam Pamela Patty Paula Peggy Phyllis Rachael Rachel
Rebecca Rebekah Regina Renee Rhonda Rita Robin Robyn Rose Sabrina Sally Samantha Sara Savannah
Sharon Shawna Sheena Shelby Shelia Shelley Shelly Sheri Sherry Sheryl Shirley Sierra Sonia Sonya
Sophia Stacey Stacie Stefanie Stephanie Sue Summer Susan Sydney Sylvia Tabitha Tamara Tami
Tammie Tammy Tanya Tara Tasha Terri Tiffany Tracey Traci Tracie Tricia Vanessa Vicki Victoria
Virginia Wanda Whitney Yesenia Yvette Zoe
""".split()
)

#: first names taken up by "he"
MALE_NAMES: tuple[str, ...] = tuple(
    """
Aaron Adam Adrian Albert Alec Alex Alexander Alfred Allen Alvin Andre Andres Anthony Antonio
Austin Barry Benjamin Bernard Bill Billy Blake Bob Brad Bradley Brady Brandon Brendan Brent
Brett Bruce Bryan Bryce Caleb Calvin Cameron Carl Carlos Cesar Charles Chase Christian
Christopher Clarence Clayton Clifford Clinton Cody Cole Colin Collin Colton Connor Corey Cory
Craig Cristian Dakota Dale Dalton Damon Dan Darin Darius Darrell Darren Darryl Daryl Dave David
Dean Dennis Derek Derrick Devin Devon Dillon Dominic Donald Douglas Drew Duane Dustin Dwayne
Dylan Earl Eddie Edgar Eduardo Edward Edwin Elijah Eric Erik Ernest Ethan Evan Fernando Francis
Francisco Frank Franklin Fred Frederick Gabriel Garrett Gary Gavin Gene Geoffrey George Gerald
Glen Glenn Gordon Greg Gregory Guy Harold Harry Hector Henry Herbert Hunter Ian Isaac Isaiah
Ivan Jack Jackson Jacob Jake James Jared Jason Javier Jeff Jeffery Jeffrey Jeremy Jermaine
Jerome Jerry Jesus Jim Jimmy Joe Joel John Johnathan Jonathan Jonathon Jorge Joseph Joshua Juan
Julian Justin Karl Keith Kenneth Kent Kirk Kristopher Kurt Larry Lawrence Leonard Leroy Levi
Lonnie Louis Lucas Luis Luke Malik Manuel Marc Marco Marcus Mario Mark Martin Marvin Mason
Matthew Maurice Max Maxwell Melvin Michael Miguel Mike Mitchell Nathan Nathaniel Neil Nicholas
Nicolas Norman Omar Oscar Paul Peter Philip Preston Ralph Randall Randy Raymond Reginald Ricardo
Rick Rickey Ricky Robert Roberto Rodney Roger Ronald Ronnie Ross Ryan Samuel Sean Sergio Seth
Shane Shaun Shawn Spencer Stanley Stephen Steven Stuart Tanner Terrance Terrence Theodore Thomas
Tim Timothy Todd Tom Tommy Tony Travis Trevor Tristan Troy Tyler Tyrone Victor Walter Wayne
Wesley William Willie Wyatt Xavier Zachary
""".split()
)

#: family names
SURNAMES: tuple[str, ...] = tuple(
    """
Abbott Acevedo Adams Aguirre Ali Alvarado Andersen Atkins Atkinson Avery Ayers Baird Baker
Baldwin Ballard Banks Barber Barnett Barrett Barron Bartlett Bauer Baxter Bean Bell Benitez
Bentley Berg Berry Best Black Blackburn Blackwell Blankenship Bolton Bond Booker Boone Booth
Bowen Bowman Boyd Bradford Bradshaw Branch Brewer Bridges Briggs Brock Bryant Buck Buckley
Bullock Burgess Burton Butler Byrd Cabrera Cain Calderon Camacho Campos Cannon Cantu Cardenas
Carey Carney Carrillo Carson Case Castaneda Cervantes Chambers Chandler Chaney Chang Chapman
Chen Cherry Cisneros Clarke Clements Cline Cobb Collins Combs Cooley Cortez Crane Crosby Cross
Cuevas Cunningham Daniels Daugherty Davies Davila Diaz Dickerson Dixon Dodson Dominguez Donovan
Drake Duarte Dudley Duffy Duran Durham Ellison English Erickson Escobar Esparza Estrada Everett
Farrell Fields Figueroa Finley Fitzgerald Fleming Fletcher Flores Floyd Ford Frey Fuller
Gallagher Gallegos Gamble Garcia Garrison Gay Gibbs Gibson Giles Gill Gilmore Glover Golden
Gomez Gonzales Gonzalez Good Goodwin Graves Green Gross Guerrero Guzman Haas Hall Hamilton
Hampton Hardin Hardy Harmon Harrell Harrison Harvey Hatfield Hawkins Hayes Hays Hebert Hendricks
Hendrix Hensley Henson Hernandez Herrera Herring Hester Hickman Higgins Hines Hobbs Hodge
Hoffman Hogan Holland Holloway Hoover Horn Horne House Houston Howe Hubbard Huber Huerta Huff
Huffman Hull Humphrey Hurley Huynh Ingram Jacobs Jacobson Jefferson Jenkins Jimenez Johns
Johnson Johnston Juarez Kaiser Kane Kaufman Kelley Kennedy King Kirby Knox Krueger Lam Lambert
Landry Lane Lang Larsen Lawson Leblanc Levine Li Livingston Love Lowe Lowery Lozano Luna Lynch
Mack Madden Maldonado Malone Mann Marquez Martinez Mata Mathews Mathis Matthews Mayer Maynard
Mayo Mccann Mccarthy Mccormick Mccoy Mcdaniel Mckay Mckee Mclaughlin Mclean Mcmillan Meadows
Medina Melendez Mendez Mercado Middleton Miller Molina Montoya Moody Moore Moran Moreno Morris
Morton Moyer Mullins Munoz Murphy Murray Nguyen Nolan Norris Nunez Obrien Oconnell Odonnell
Oliver Olsen Olson Oneal Oneill Orozco Ortiz Osborn Owen Pace Padilla Park Parrish Parsons Patel
Patterson Payne Perez Perkins Petersen Peterson Petty Pham Phelps Pierce Pineda Pollard Poole
Potts Powers Price Proctor Ramsey Rangel Rasmussen Reed Reeves Reid Reynolds Rhodes Rich
Richmond Riddle Robbins Roberson Roberts Robinson Robles Rogers Rojas Rollins Roman Rowe Rowland
Rubio Ruiz Russo Sanchez Sanford Santos Sawyer Schaefer Schultz Schwartz Sexton Shaffer Shah
Sharp Shelton Shepard Shepherd Sherman Shields Short Simon Simpson Skinner Sloan Sosa Soto
Spears Stafford Stanton Stephenson Stevens Stewart Stout Strong Suarez Swanson Sweeney Thompson
Torres Townsend Tran Valdez Valencia Valentine Valenzuela Vang Vasquez Vega Velasquez Villarreal
Wade Wall Wallace Waller Walls Walsh Walters Ware Warner Washington Waters Watkins Watson Watts
Webb Webster Weiss Welch White Wilkerson Wilkins Willis Wilson Winters Yang Yates York Zamora
Zavala Zimmerman Zuniga
""".split()
)

#: syllable starts of invented names
ONSETS: tuple[str, ...] = tuple(
    """
b b c d d f g h j k k l l m m n n p r r s s t t v v w y z br cl cr dr fl fr gl gr kl kr pl pr sh
sk sl st sv th tr qu
""".split()
)

#: syllable middles of invented names
NUCLEI: tuple[str, ...] = tuple(
    """
a a a a e e e e i i i o o o o u u ae ai ea ei ia io ou
""".split()
)

#: syllable ends of invented names (a dash is none)
CODAS: tuple[str, ...] = tuple(
    """
- - - - l n r s m th nd rn ck lt st x ld rk ss v t d
""".split()
)

#: endings of town names
TOWN_ENDS: tuple[str, ...] = tuple(
    """
- - - ford ham bury ton wick mere dale stead haven gate burg field by holm
""".split()
)

#: second words of company names
COMPANY_ENDS: tuple[str, ...] = tuple(
    """
Foods Works Systems Labs Mills Motors Press Textiles Logistics Optics Brothers Partners Group
Tools Robotics Energy Shipping Studios Glass Paper Instruments Pharma Airways Metals
""".split()
)

#: professions
JOBS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
baker, engineer, nurse, teacher, lawyer, carpenter, plumber, pilot, farmer, dentist, librarian,
journalist, architect, electrician, gardener, butcher, tailor, chemist, accountant, translator,
photographer, barber, geologist, surgeon, mechanic, painter, sculptor, actor, florist, jeweller,
fisherman, sailor, judge, detective, firefighter, paramedic, economist, historian, astronomer,
biologist, musician, composer, dancer, waiter, bartender, cashier, courier, taxi driver, bus
driver, train conductor, beekeeper, shepherd, blacksmith, glassblower, potter, weaver,
bookbinder, printer, editor, publisher, optician, pharmacist, veterinarian, zookeeper, ranger,
lifeguard, coach, referee, tour guide, travel agent, estate agent, surveyor, welder, roofer,
bricklayer, plasterer, miner, locksmith, clockmaker, cobbler, brewer, winemaker, cheesemaker,
confectioner, chef, dietitian, psychologist, midwife, radiologist, web designer, game designer,
programmer, statistician, data analyst, auditor, notary, diplomat, curator, archivist,
stonemason, upholsterer, piano tuner, violin maker, puppeteer, magician, cartographer,
meteorologist, hydrologist, forester
""".split(",")
)

#: kinds of pets
PETS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
cat, dog, parrot, rabbit, hamster, goldfish, tortoise, ferret, canary, guinea pig, gecko,
iguana, snake, mouse, rat, pony, goat, donkey, duck, goose, hen, rooster, pigeon, owl, falcon,
hedgehog, chinchilla, budgie, cockatoo, lizard, frog, toad, newt, crab, turtle, llama, alpaca,
sheep, pig, raven, finch, macaw, peacock, squirrel, spider, salamander, chameleon, otter, lamb,
kitten, puppy, greyhound, beagle, poodle, terrier, spaniel, collie, mule, swan, quail
""".split(",")
)

#: colours
COLOURS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
red, blue, green, yellow, orange, purple, pink, brown, black, white, grey, violet, indigo,
turquoise, crimson, scarlet, maroon, teal, navy, olive, lime, amber, beige, ivory, lilac,
lavender, magenta, mauve, ochre, peach, coral, salmon, mint, emerald, jade, cobalt, azure, cyan,
rust, copper, bronze, gold, silver, cream, charcoal, khaki, plum, mustard, burgundy, sapphire
""".split(",")
)

#: foods
FOODS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
pizza, lasagne, risotto, dumplings, noodles, lentil soup, tomato soup, onion soup, pancakes,
waffles, omelettes, porridge, fish pie, apple pie, cherry pie, roast chicken, fried rice, curry,
chilli, goulash, paella, sushi, tacos, burritos, falafel, hummus, couscous, ratatouille,
ravioli, gnocchi, meatballs, mushroom stew, beef stew, potato salad, beetroot salad, cheesecake,
chocolate cake, carrot cake, gingerbread, plum cake, rice pudding, custard, ice cream, figs,
dates, olives, mangoes, strawberries, blueberries, peaches, pears, walnuts, almonds, grilled
trout, smoked salmon, crab cakes, oysters, mussels, baked beans, corn bread, rye bread, garlic
bread, pretzels, crumpets, scones, marmalade, honey, pickles, spinach, asparagus, artichokes,
pumpkin soup, borscht, pierogi, kebab, moussaka, quiche, fondue, sauerkraut, jollof rice
""".split(",")
)

#: drinks
DRINKS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
coffee, green tea, black tea, mint tea, cocoa, lemonade, apple juice, orange juice, grape juice,
cider, ginger beer, tonic water, milk, oat milk, buttermilk, hot chocolate, espresso, iced tea,
root beer, mineral water, tomato juice, cherry juice, pear juice, carrot juice, mango juice,
coconut water, rosehip tea, camomile tea, elderflower cordial, malt beer, red wine, white wine,
kefir, barley water, chai, lassi
""".split(",")
)

#: pastimes
HOBBIES: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
chess, knitting, sailing, archery, pottery, fencing, rowing, fishing, hiking, cycling, swimming,
skiing, skating, juggling, origami, calligraphy, gardening, birdwatching, stargazing, baking,
photography, woodwork, embroidery, quilting, climbing, kayaking, surfing, tennis, badminton,
croquet, bowling, golf, cricket, rugby, table tennis, card games, crosswords, jigsaw puzzles,
model trains, stamp collecting, coin collecting, beekeeping, ballroom dancing, tap dancing,
singing, painting, sketching, sculpting, bell ringing, geocaching, horse riding, orienteering,
judo, karate, yoga, kite flying, darts, billiards, metal detecting, wood carving
""".split(",")
)

#: musical instruments
INSTRUMENTS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
piano, violin, cello, flute, clarinet, oboe, bassoon, trumpet, trombone, tuba, harp, guitar,
banjo, mandolin, lute, accordion, organ, drums, xylophone, saxophone, viola, double bass,
ukulele, harmonica, bagpipes, recorder, French horn, sitar, zither, harpsichord, marimba,
piccolo, tambourine, fiddle, concertina
""".split(",")
)

#: languages
LANGUAGES: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
French, German, Spanish, Italian, Portuguese, Dutch, Danish, Swedish, Norwegian, Finnish,
Polish, Czech, Hungarian, Greek, Turkish, Arabic, Hebrew, Persian, Hindi, Urdu, Bengali, Tamil,
Thai, Vietnamese, Korean, Japanese, Mandarin, Swahili, Zulu, Yoruba, Welsh, Irish, Basque,
Catalan, Latin, Icelandic, Estonian, Latvian, Romanian, Bulgarian, Ukrainian, Georgian,
Armenian, Mongolian, Tibetan, Maltese
""".split(",")
)

#: what companies make
PRODUCTS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
bicycles, lamps, umbrellas, clocks, carpets, candles, kettles, telescopes, violins, boats,
gloves, hats, boots, blankets, mirrors, tents, ladders, locks, pianos, tiles, bricks, paints,
soaps, perfumes, pencils, notebooks, batteries, solar panels, wind turbines, drones, cameras,
microscopes, hearing aids, toothbrushes, chocolates, biscuits, jams, noodles, cheeses, teas,
toys, board games, puzzles, skis, sledges, canoes, elevators, escalators, cranes, tractors,
trams, lawn mowers, vacuum cleaners, ovens, refrigerators, washing machines, fans, heaters,
pumps, valves, bearings, springs, cables, antennas, routers, printers, scanners, keyboards,
headphones, loudspeakers, chairs, desks, wardrobes, mattresses, curtains, baskets, bottles,
jars, barrels, envelopes, maps, globes, compasses, thermometers, barometers, scales, syringes,
bandages, vaccines, fertilisers, seeds, greenhouses, beehives, fishing nets, ropes, sails,
anchors
""".split(",")
)

#: what towns are known for
SPECIALTIES: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
its cheese, its honey, its cider, its lace, its pottery, its wool, its glass, its old bridge,
its lighthouse, its clock tower, its cathedral, its castle, its gardens, its hot springs, its
salt mine, its windmills, its vineyards, its orchards, its tulips, its roses, its jazz festival,
its book market, its fish market, its horse fair, its kite festival, its carnival, its puppet
theatre, its opera house, its university, its observatory, its harbour, its beaches, its caves,
its waterfalls, its pine forest, its marble, its silver mine, its paper mill, its shipyard, its
bell foundry, its chocolate, its mustard, its smoked ham, its pies, its gingerbread, its
carpets, its violins, its clocks, its ice rink, its chess club
""".split(",")
)

#: parts of a country
REGIONS_PLAIN: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
north, south, east, west, north-east, north-west, south-east, south-west
""".split(",")
)

#: things with a name before them
ITEM_NOUNS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
lantern, chest, vase, clock, painting, statue, mirror, compass, telescope, violin, harp, sword,
shield, crown, ring, necklace, bracelet, goblet, chalice, bowl, plate, jug, teapot, kettle,
lamp, candlestick, carpet, tapestry, quilt, chair, table, desk, cabinet, wardrobe, cradle,
globe, map, atlas, diary, manuscript, scroll, coin, medal, key, locket, music box, bell, drum,
mask, doll, puppet, model ship, anchor, barometer, sundial, hourglass, chessboard, inkwell,
typewriter, camera, radio, gramophone, bicycle, sledge, saddle, umbrella, walking stick,
snuffbox, brooch, figurine
""".split(",")
)

#: places where things are kept
ROOMS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
cellar, attic, library, kitchen, workshop, vault, greenhouse, garage, north hall, south hall,
east wing, west wing, reading room, map room, blue room, red room, tower, chapel, barn, stable,
boathouse, pantry, laundry, study, archive, main office, back office, lobby, gallery, ballroom,
music room, tool shed, wine cellar, storeroom, strongroom, engine house, gatehouse, laboratory,
sick bay, staff room, classroom, gymnasium, canteen, loading dock, cold store, old mill, crypt,
conservatory, nursery, armoury
""".split(",")
)

#: materials
MATERIALS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
oak, pine, walnut, cherry wood, mahogany, ebony, bamboo, iron, steel, brass, tin, pewter, lead,
aluminium, titanium, marble, granite, slate, sandstone, clay, porcelain, glass, crystal,
leather, silk, wool, cotton, linen, felt, velvet, paper, cardboard, wax, bone, horn, amber,
coral, jade, ivory, concrete, plaster, rubber, straw, wicker, cork, birch, maple, ash wood,
rosewood, teak
""".split(",")
)

#: adjectives of the filler
ADJECTIVES: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
quiet, bright, narrow, old, gentle, busy, distant, early, late, small, large, careful, plain,
curious, cheerful, heavy, light, slow, quick, cold, warm, damp, dry, dusty, clean, empty,
crowded, famous, forgotten, ordinary, steep, winding, modern, ancient, pleasant, grey, muddy,
silent, friendly, strict
""".split(",")
)

#: nouns of the filler
NOUNS: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
road, river bank, market, meeting, garden, bridge, committee, letter, report, harvest, train,
window, roof, fence, path, field, school, kitchen, newspaper, radio, concert, exhibition,
winter, summer, storm, fog, festival, council, visitor, neighbour, child, horse, boat, ferry,
hill, valley, forest, lake, square, church, museum, inn, shop, mill, orchard, wall, door,
staircase, corridor, archive
""".split(",")
)

#: predicates of the filler
VERBS_PAST: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
was repaired, was closed, was opened, was painted, was moved, was discussed, was postponed, was
cancelled, was praised, was forgotten, was measured, was cleaned, was photographed, was visited,
was inspected, was admired, was rebuilt, was flooded, was decorated, was renamed
""".split(",")
)

#: times of the filler
TIMES: tuple[str, ...] = tuple(
    " ".join(word.split())
    for word in """
that week, last spring, in the morning, after lunch, on Monday, on Tuesday, on Friday, at noon,
before dawn, in the autumn, in early May, in late June, during the holidays, over the winter,
two days later, a year earlier, at the end of the month, in the evening, at midnight, on the
first Sunday
""".split(",")
)
