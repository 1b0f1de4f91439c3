"""More phrasings: frames to be crossed with nouns, and further sentences and questions a relation.

A frame crossed with the nouns of a relation gives many phrasings with few words, so that the reader
learns what words mean and not whole sentences. Which are held out, `heldout` decides. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypic_sdk.demo.phrasings_person import PERSON_MORE
from hypic_sdk.demo.phrasings_styles import STYLED
from hypic_sdk.demo.phrasings_things import THINGS_MORE

# ruff: noqa: E501 - one phrasing list a line reads better than wrapped strings
STATEMENT_FRAMES = (
    "{p} {n} is {w}.|the {n} of {o} is {w}.|{w} is {p} {n}.|{w} is the {n} of {o}.|{p} {n}: {w}.|"
    "{s} gives {p} {n} as {w}.|as for {p} {n}, it is {w}.|when it comes to {p} {n}, the answer is {w}.|"
    "the file gives {w} as {p} {n}.|{p} {n} is said to be {w}.|the {n} of {o} is given as {w}.|"
    "{p} {n} happens to be {w}.|it is {w} that is listed as {p} {n}.|{w} has long been {p} {n}.|"
    "everyone knows that {p} {n} is {w}.|the {n} that belongs to {o} is {w}.|{s} has {w} as {p} {n}.|"
    "asked about {p} {n}, people say {w}.|{p} present {n} is {w}.|one reads that the {n} of {o} is {w}.|"
    "the {n} of {o}: {w}.|with {o}, the {n} is {w}.|for {o}, the {n} is {w}.|{w} is what the file says about {p} {n}.|"
    "{w} is on record as {p} {n}.|{p} {n} was found to be {w}.|"
    "{p} {n}, so the file says, is {w}.|nobody doubts that {p} {n} is {w}.|there is one {n} given for {o}: {w}.|"
    "under {n}, the form of {o} says {w}.|whoever asks for {p} {n} hears {w}.|{w}, that is {p} {n}.|{w}: that is the {n} of {o}.|"
    "if asked for {p} {n}, say {w}.|the entry for the {n} of {o} reads {w}.|the {n} recorded for {o} is {w}.|"
    "{s} is listed with {w} as {p} {n}.|we know {w} to be {p} {n}.|by now {p} {n} is {w}.|{p} {n}, by the way, is {w}.|"
    "{p} {n} remains {w}.|what is written for {p} {n} is {w}.|in the column for {n}, {s} has {w}.|{p} {n} has been {w} for some time.|"
    "{w} was noted as {p} {n}.|and {p} {n}? it is {w}.|speaking of {o}, the {n} is {w}.|let it be known that the {n} of {o} is {w}.|"
    "the card of {o} shows {w} as the {n}.|{s}, {n}: {w}.|{p} {n} turned out to be {w}.|on the form, {w} was put as {p} {n}.|"
    "they wrote down {w} as {p} {n}.|{p} {n} is none other than {w}.|about {p} {n} the notes say {w}."
)
QUESTION_FRAMES = (
    "what is {p} {n}?|what is the {n} of {o}?|tell me {p} {n}.|tell me the {n} of {o}.|name the {n} of {o}.|"
    "can you tell me {p} {n}?|do you know the {n} of {o}?|give me {p} {n}.|what {n} does {s} have?|"
    "which {n} does {s} have?|I would like to know {p} {n}.|{p} {n}?|what do the documents say about {p} {n}?|"
    "what was {p} {n}?|what is listed as {p} {n}?|please name {p} {n}.|what is given as the {n} of {o}?|"
    "what {n} is given for {o}?|which {n} belongs to {o}?|what is {p} {n} now?|what is {p} present {n}?|"
    "find the {n} of {o}.|what can you say about the {n} of {o}?|the {n} of {o} is what?|"
    "could you give me {p} {n}?|what would be {p} {n}?|what was written down as {p} {n}?|look up {p} {n}.|I need {p} {n}.|"
    "and {p} {n}, what is it?|what does {s} have as {p} {n}?|state the {n} of {o}.|what can be read about {p} {n}?|"
    "what is known as {p} {n}?|what is recorded as the {n} of {o}?|I am looking for the {n} of {o}."
)
PERSON_FRAMES = "who is {p} {n}?|who is the {n} of {o}?|who was {p} {n}?|what is the name of {p} {n}?|what is the name of the {n} of {o}?|who is listed as {p} {n}?|who is {n} of {o}?|whom do the documents give as {p} {n}?|who is named as the {n} of {o}?|who is it that is {p} {n}?"

#: relation to nouns and to the form of the value; "who" marks a person or company
NOUNS: Mapping[str, tuple[str, str]] = {
    "born_in": ("birthplace|place of birth|town of birth|native town", "{v}"),
    "born_year": ("year of birth|birth year", "{v}"),
    "lives_in": ("home|home town|town of residence|place of residence|residence", "{v}"),
    "works_for": ("employer|place of work|company|workplace", "who {v}"),
    "job": ("job|profession|occupation|trade|line of work|calling", "{v}"),
    "pet": ("pet|pet animal|kind of pet|animal|animal at home", "{a}"),
    "pet_name": ("pet's name", "{v}"),
    "colour": ("favourite colour|preferred colour|best-liked colour", "{v}"),
    "food": ("favourite food|favourite dish|preferred dish|best-liked food|favourite meal", "{v}"),
    "drink": ("favourite drink|preferred drink|usual drink|best-liked drink", "{v}"),
    "age": ("age|age in years|present age", "{v}"),
    "extension": ("extension|phone extension|telephone extension|extension number", "{v}"),
    "locker": ("locker code|code of the locker|code for the locker|locker combination", "{v}"),
    "hobby": ("hobby|pastime|favourite pastime|free-time activity|favourite hobby", "{v}"),
    "spouse": ("spouse|partner in marriage|husband or wife", "who {v}"),
    "instrument": ("instrument|musical instrument|favourite instrument", "the {v}"),
    "language": ("language|mother tongue|native language|first language", "{v}"),
    "mentor": ("mentor|teacher|former teacher|tutor", "who {v}"),
    "office": ("office|desk|work room|place in the building", "the {v}"),
    "founded": ("founding year|year of founding|year of foundation|starting year", "{v}"),
    "based_in": ("headquarters|seat|main office|head office|home base|location", "{v}"),
    "led_by": ("director|head|leader|chief|boss|manager", "who {v}"),
    "makes": ("product|main product|products|merchandise", "{v}"),
    "staff": ("number of employees|staff size|number of workers|payroll count", "{v}"),
    "supplier": ("supplier|main supplier|source of supplies|supplier of parts", "who {v}"),
    "river": ("river|main river|local river", "the {v}"),
    "region": ("region|home region|part of the country|province", "{v}"),
    "mayor": ("mayor|present mayor|town mayor", "who {v}"),
    "known_for": ("claim to fame|main attraction|pride|great attraction", "{v}"),
    "population": ("population|number of inhabitants|number of people|count of inhabitants", "{v}"),
    "item_colour": ("colour|coat of paint|shade|outer colour", "{v}"),
    "weight": ("weight|weight in kilograms|mass", "{v} kilograms"),
    "keeper": ("keeper|caretaker|guardian|custodian", "who {v}"),
    "stored_in": ("storage place|place|location|present place|storage room", "the {v}"),
    "material": ("material|main material|substance", "{v}"),
    "price": ("price|cost|value|price in crowns", "{v} crowns"),
    "serial": ("inventory number|catalogue number|label|number in the inventory", "{v}"),
}

_FURTHER: Mapping[str, tuple[str, str]] = {**PERSON_MORE, **THINGS_MORE}

#: relation to further statements and questions
MORE: Mapping[str, tuple[str, str]] = {
    "born_in": (
        "it was at {v} that {s} was born.|the place of {p} birth was {v}.|in {v}, {s} was born.|{v} was the place of {p} birth.|the birth of {o} took place in {v}.|{p} birth took place in {v}.|{v} saw the birth of {o}.|it was in {v} that {s} came into the world.|{s} first saw the light of day in {v}.|{s} had {p} birth in {v}.",
        "where did {s} come into the world?|of which town is {s} a native?|where did {p} birth take place?|tell me in which town {s} was born.|in what place was {s} born?",
    ),
    "born_year": (
        "it was {v} when {s} came into the world.|{p} birth fell in the year {v}.|{v} saw the birth of {o}.|the year in which {s} was born is {v}.|{s} was a child of the year {v}.",
        "when did {s} come into the world?|tell me when {s} was born.|what was the year of {p} birth?|in which year did {p} birth fall?",
    ),
    "lives_in": (
        "{s} has made {v} {p} home.|{p} house stands in {v}.|one can find {o} at home in {v}.|nowadays {s} lives in {v}.|it is in {v} that {s} lives.|{s} moved over to {v} and lives there.|{s} is at home in {v}.",
        "tell me where {s} lives.|where is {s} at home?|in which town is {p} home?|which town is {p} home?|where does {s} reside at present?",
    ),
    "works_for": (
        "{s} is an old employee of {v}.|{s} became an employee of {v}.|{s} is a worker at {v}.|{s} is an assistant at {v}.|the wages of {o} are paid by {v}.|the present employer of {o} is {v}.|{s} joined {v} and works there.|{s} is an employee at {v}.|{s} is a trusted employee of {v}.|{v} counts {o} among its employees.|{s} is one of the employees of {v}.|it is {v} that employs {o}.|{v} pays {p} wages.|{s} draws a salary from {v}.|{s} does {p} work at {v}.",
        "tell me who {s} works for.|at which company does {s} have a job?|what is the name of the company {s} works for?|by whom is {s} employed?|who pays {p} wages?",
    ),
    "job": (
        "by occupation, {s} is {a}.|{s} makes {p} money as {a}.|{s} has the occupation of {a}.|people know {o} as {a}.|{s} is employed as {a}.|{s} is a professional {v}.",
        "tell me what {s} does for a living.|as what does {s} work?|what is {s} by trade?|what is {s} by occupation?|what work does {s} do?",
    ),
    "pet": (
        "{s} shares the house with {a}.|together with a pet {v}, {s} has a quiet home.|as a companion, {s} has {a}.|a pet {v} lives with {o}.|{a} lives in {p} house.|{s} shares {p} home with {a}.|for a pet, {s} has {a}.|{s} bought {a} as a pet.|there is {a} in {p} house.|{s} is the owner of {a}.",
        "what animal shares {p} house?|of which animal is {s} the owner?|tell me what pet {s} has.|what kind of animal does {s} have?|which pet is {p}?",
    ),
    "pet_name": (
        "{p} pet answers to the name of {v}.|{p} pet has the name {v}.|{v} is what {s} calls {p} pet.|{p} animal is named {v}.|{v} is the name that {s} gave {p} pet.",
        "by what name does {p} pet go?|tell me the name of {p} pet.|which name did {s} give {p} pet?|what is the name of the animal of {o}?",
    ),
    "colour": (
        "{s} has often said that {p} best colour is {v}.|no other colour pleases {o} so much as {v}.|{s} always said that {v} is the best colour.|nothing pleases {o} like the colour {v}.|{s} has a liking for the colour {v}.|{v} is the colour that pleases {o} most.|{s} says the favourite is {v}.",
        "which colour pleases {o} most?|tell me which colour {s} likes best.|for which colour does {s} have a liking?|what is the colour that {s} likes?",
    ),
    "food": (
        "of all food, {v} pleases {o} most.|{s} would eat {v} at any time.|no other food pleases {o} so much as {v}.|nothing pleases {o} like {v}.|{s} could eat {v} every day.|{v} is the dish that pleases {o} most.|{s} eats {v} more gladly than anything.|the best dish, says {s}, is {v}.",
        "which dish pleases {o} most?|tell me what {s} likes to eat.|what could {s} eat every day?|what does {s} eat most gladly?|which food does {s} prefer?",
    ),
    "drink": (
        "when {s} is thirsty, {v} is the best drink.|after work, {s} likes to drink {v} best.|of everything to drink, {v} pleases {o} most.|nothing to drink pleases {o} like {v}.|{s} could drink {v} all day.|{v} is the drink that pleases {o} most.|{p} thirst calls for {v}.|{s} drinks {v} more gladly than anything.",
        "which drink pleases {o} most?|tell me what {s} likes to drink.|what could {s} drink all day?|what does {s} drink most gladly?|which drink does {s} prefer?",
    ),
    "age": (
        "{s} celebrated and is {v} now.|{s} has reached {v} years.|{s} came to the age of {v}.|{s} reached {v} this year.|{s} is now {v}.|{s} has lived for {v} years.|{p} last birthday made {o} {v} years old.|{s} celebrated {p} {v} years.|at the age of {v}, {s} is still busy.",
        "tell me how old {s} is.|for how many years has {s} lived?|how many years of age is {s}?|what age did {s} reach?",
    ),
    "extension": (
        "anyone who calls {o} should dial {v}.|people who want to talk to {o} use extension {v}.|extension {v} is the one of {o}.|extension {v} rings on the desk of {o}.|whoever phones {o} needs extension {v}.|extension {v} was given to {o}.|to talk to {o}, one should use extension {v}.|extension {v} is used by {o}.|phone {o} at {v}.|whoever wants to call {o} dials {v}.|{p} phone has the extension {v}.|use extension {v} to phone {o}.|the telephone of {o} has extension {v}.|{v} is the extension to dial for {o}.",
        "which extension should one use to phone {o}?|what does one dial to call {o}?|at what extension is {s}?|what extension does {p} phone have?|which extension belongs to {o}?",
    ),
    "locker": (
        "{v} is the code that opens {p} locker.|to open {p} locker, use {v}.|{p} locker can be opened with {v}.|the locker of {o} has the code {v}.|{p} locker needs the code {v}.",
        "with which code does {p} locker open?|what opens the locker of {o}?|which code does {p} locker have?|what code is needed for {p} locker?",
    ),
    "hobby": (
        "as a pastime, {s} has chosen {v}.|after work, {s} enjoys {v}.|in the evening, {s} enjoys {p} pastime, {v}.|{s} chose {v} as {p} hobby.|after work, {s} turns to {v}.|{s} likes to pass the time with {v}.|in the evenings, {s} enjoys {v}.|{s} is keen on {v}.|as a pastime, {s} likes {v}.",
        "how does {s} like to pass the time?|what is {s} keen on?|on what does {s} spend {p} free time?|what does {s} enjoy in {p} free time?|which pastime did {s} choose?",
    ),
    "spouse": (
        "{s} is the partner of {v}.|{s} is the husband of {v}.|{s} is the wife of {v}.|a priest married {o} to {v}.|{s} was married to {v} at the town hall.|{s} was married to {v} by the mayor.|last spring {s} was married to {v}.|{s} is now the other half of {v}.|{s} and {v} became husband and wife.|{s} is the husband or wife of {v}.|{s} got married to {v}.|{s} exchanged rings with {v}.|at the wedding, {s} married {v}.|{s} has {v} as a spouse.|{v} is the one {s} married.",
        "with whom did {s} exchange rings?|tell me who {s} is married to.|who is married to {o}?|whom has {s} married?|to whom did {s} get married?",
    ),
    "instrument": (
        "{s} can play the {v}.|one hears {o} play the {v}.|{s} owns and plays the {v}.|{s} knows the {v} well and plays it.|{s} gives lessons on the {v}.|{s} is a player of the {v}.",
        "on which instrument does {s} perform?|tell me which instrument {s} plays.|what can {s} play?|of which instrument is {s} a player?",
    ),
    "language": (
        "the home language of {o} is {v}.|{s} knows the language {v} by heart.|{s} learned the {v} language well.|{s} knows {v}.|{s} can speak {v}.|with {p} friends, {s} speaks {v}.|{s} grew up with {v}.|the tongue {s} speaks is {v}.|{s} has a good command of {v}.",
        "which language can {s} speak?|tell me which language {s} speaks.|what language did {s} grow up with?|of which language does {s} have a command?|which language did {s} learn as a child?",
    ),
    "mentor": (
        "{s} was once a pupil of {v}.|{s} was a student of {v}, a good teacher.|it was {v} who was {p} teacher.|{v} was the one who taught {o}.|{s} was a pupil of {v} for years.|{s} still visits {v}, {p} old teacher.|{s} became the pupil of {v}.|it was {v} who gave {o} lessons.|{s} listened to {v}, {p} mentor.|{s} is a pupil of {v}.|{s} studied under {v}.|it was {v} who trained {o}.|{s} was the student of {v}.|{v} once trained {o}.|{s} owes {p} training to {v}.",
        "under whom did {s} study?|whose pupil is {s}?|tell me who taught {o}.|who trained {o}?|who was the teacher that {s} had?",
    ),
    "office": (
        "anyone who wants to see {o} finds {p} desk in the {v}.|whoever looks for {o} finds {p} office in the {v}.|the {v} has {p} desk in it.|the {v} is where {s} has an office.|one finds {p} office in the {v}.|to see {o}, go to the office in the {v}.|it is in the {v} that {s} has an office.|the {v} contains {p} desk.|{s} does office work in the {v}.|you can find {p} desk in the {v}.",
        "in which room does {s} have an office?|tell me where {s} has an office.|where can one find {p} office?|which room is {p} office in?|in which room does {p} desk stand?",
    ),
    "founded": (
        "in {v} came the founding of {o}.|the founders started {o} in {v}.|{p} history began in {v}.|it was in {v} that {s} was founded.|{v} is the year in which {s} was founded.|{s} opened for business in {v}.|the year {v} was the first year of {o}.",
        "when did the founders start {o}?|tell me when {s} was founded.|when did {p} history begin?|when did {s} open for business?|which year was {s} set up in?",
    ),
    "based_in": (
        "one finds the head office of {o} in {v}.|{s} does business from {v}.|{s} runs its affairs from {v}.|it is in {v} that {s} is based.|{v} is home to {o}.|{s} has its seat in {v}.|{s} keeps its headquarters in {v}.",
        "tell me where {s} is based.|from which town does {s} operate?|where does {s} have its seat?|which town is home to {o}?|which town is the seat of {o}?|in what town are the headquarters of {o}?",
    ),
    "led_by": (
        "the person in charge of {o} is {v}.|at the head of {o} one finds {v}.|the one who leads {o} is {v}.|at the top of {o} stands {v}.|the person who runs {o} is {v}.|at the top of {o} is {v}.|{v} stands at the head of {o}.|{v} directs {o}.|{v} is in charge of {o}.|the one in charge of {o} is {v}.|{s} has {v} as its head.",
        "who is in charge of {o}?|who stands at the head of {o}?|who directs {o}?|which person leads {o}?|what is the name of the head of {o}?|who is at the top of {o}?",
    ),
    "makes": (
        "{v} are made by {o}.|{s} is known for making {v}.|{s} is a producer of {v}.|{v} come from {o}.|what {s} sells is {v}.|{s} earns its money with {v}.|{s} specialises in {v}.",
        "what kind of things does {s} make?|what does {s} sell?|what comes from {o}?|which goods does {s} produce?|with what does {s} earn its money?|tell me what {s} makes.|in what does {s} specialise?",
    ),
    "staff": (
        "{v} people are on the payroll of {o}.|{s} gives jobs to {v} people.|{s} pays {v} employees.|there are {v} employees at {o}.|{v} workers are employed by {o}.|at {o}, {v} people have work.",
        "how many people are on the payroll of {o}?|how many workers does {s} have?|to how many people does {s} give jobs?|tell me how many people work for {o}.|how many people have work at {o}?",
    ),
    "supplier": (
        "parts for {o} come from {v}.|the company that delivers to {o} is {v}.|it is {v} that supplies {o}.|{s} relies on {v} for its supplies.|{s} orders its parts from {v}.|{v} is the one that supplies {o}.",
        "from whom does {s} buy its supplies?|which company delivers to {o}?|tell me who supplies {o}.|on which supplier does {s} rely?|from where do the parts for {o} come?",
    ),
    "river": (
        "the {v} passes through {o}.|{s} is on the river {v}.|{s} is a place on the {v}.|the water of the {v} runs past {o}.|the {v} is the river at {o}.|boats on the {v} stop at {o}.|bridges over the {v} link both halves of {o}.",
        "which river passes through {o}?|on what river is {s}?|tell me which river flows through {o}.|beside which river was {s} built?|what is the name of the river of {o}?|what is the river at {o} called?",
    ),
    "region": (
        "the region to which {s} belongs is {v}.|{v} is the region of {o}.|one finds {o} on the map of {v}.|{s} can be found in {v}.|the map shows {o} in {v}.|{v} is the region where {s} lies.|one of the towns of {v} is {s}.|{v} includes {o}.|{s} is counted among the towns of {v}.",
        "in which region does {s} lie?|where on the map is {s}?|tell me which region {s} is in.|of which region is {s} a part?|what region is {s} part of?|which region includes {o}?",
    ),
    "mayor": (
        "{v} holds office as mayor of {o}.|in {o}, the office of mayor belongs to {v}.|the office of mayor in {o} went to {v}.|as mayor, {v} takes care of {o}.|{v} looks after the affairs of {o} as mayor.|{v}, the mayor, governs {o}.|as mayor, {v} governs {o}.|{v} holds the office of mayor in {o}.|the people of {o} chose {v} as mayor.|{v} was elected mayor in {o}.|the town hall of {o} is led by {v}, the mayor.|{v} is mayor in {o}.",
        "who governs {o} as mayor?|whom did the people of {o} choose as mayor?|tell me who is mayor of {o}.|who is mayor in {o}?|whom did {s} elect as mayor?",
    ),
    "known_for": (
        "{s} became famous through {v}.|the fame of {o} comes from {v}.|travellers know {o} for {v}.|{v} made {o} famous.|everybody knows {o} because of {v}.|{s} draws visitors with {v}.",
        "what made {o} famous?|for what is {s} known?|where does the fame of {o} come from?|with what does {s} draw visitors?|tell me what {s} is known for.|because of what do visitors come to {o}?",
    ),
    "population": (
        "{s} counts {v} people.|there are {v} people in {o}.|{s} had {v} inhabitants at the count.|{v} inhabitants live in {o}.|the town has {v} people, and its name is {s}.|the count of people in {o} gave {v}.",
        "how many people does {s} have?|tell me how many people live in {o}.|how many inhabitants were counted in {o}?|how large is the population of {o}?|to how many people is {s} home?",
    ),
    "item_colour": (
        "{s} has the colour {v}.|one sees that {s} is {v}.|{s} shines in {v}.|in colour, {s} is {v}.|somebody painted {o} {v}.|{s} appears {v}.|everyone can see that {s} is {v}.",
        "tell me what colour {s} is.|of what colour is {s}?|what colour was {s} painted?|how is {s} painted?|in which colour does {s} shine?",
    ),
    "weight": (
        "the scales show {v} kilograms when {s} is put on them.|at {v} kilograms, {s} is hard to lift.|it takes strength to lift the {v} kilograms of {o}.|{s} is as heavy as {v} kilograms.|one measured {v} kilograms for {o}.|{s} tips the scales at {v} kilograms.",
        "tell me how heavy {s} is.|how many kilograms do the scales show for {o}?|how many kilograms is {s}?|how heavy is {o}?|what weight does {s} have?",
    ),
    "keeper": (
        "care of {o} is with {v}.|the care of {o} was handed to {v}.|the care of {o} belongs to {v}.|the person who guards {o} is {v}.|the one who looks after {o} is {v}.|the person who takes care of {o} is {v}.|{v} has {o} in {p} care.|care of {o} is the duty of {v}.|{s} was given to {v}, who keeps it.|it is {v} who looks after {o}.|{s} was put into the hands of {v}.|{v} guards {o}.",
        "who guards {o}?|into whose hands was {s} put?|tell me who keeps {o}.|which person looks after {o}?|who has the care of {o}?|what is the name of the person who keeps {o}?",
    ),
    "stored_in": (
        "whoever wants to look at {o} goes to the {v}.|anyone who wants to see {o} must visit the {v}.|the {v} keeps {o}.|the {v} has {o} in it.|to see {o}, go to the {v}.|the {v} houses {o}.|the {v} contains {o}.|whoever looks for {o} should go to the {v}.|one finds {o} in the {v}.|it is in the {v} that {s} is kept.|{s} lies in the {v}.|{s} was taken to the {v}.",
        "where do I find {o}?|where must one go to see {o}?|which room houses {o}?|tell me where {s} is.|to which room was {s} taken?|which room contains {o}?|where should one look for {o}?",
    ),
    "material": (
        "what {s} is made of is {v}.|{v} is the stuff that {s} is made of.|as material for {o}, somebody chose {v}.|it is {v} that {s} is made of.|for {o}, the craftsman used {v}.|{s} is a piece of {v}.|{v} was used to make {o}.|out of {v}, somebody made {o}.|{s} is all {v}.|the stuff of {o} is {v}.",
        "out of what material is {s}?|what was used to make {o}?|tell me what {s} is made of.|from what was {s} built?|out of which material was {s} made?",
    ),
    "price": (
        "people have to pay {v} crowns to get {o}.|buyers must pay {v} crowns for {o}.|{v} crowns is what {s} costs.|{v} crowns is the value of {o}.|one has to pay {v} crowns for {o}.|{s} was sold for {v} crowns.|the buyer of {o} pays {v} crowns.|{s} can be had for {v} crowns.|for {v} crowns, {s} changes hands.|the price tag of {o} says {v} crowns.",
        "how many crowns does one pay for {o}?|for how many crowns was {s} sold?|tell me how much {s} costs.|what does the price tag of {o} say?|how many crowns must a buyer pay for {o}?|how much money is {s} worth?",
    ),
    "serial": (
        "in the inventory, {s} has the number {v}.|the inventory number {v} belongs to {o}.|{s} is in the inventory as {v}.|look up {o} under {v}.|{s} bears the number {v}.|the list of things names {o} as {v}.",
        "under which number is {s} listed?|which number does {s} bear?|tell me the inventory number of {o}.|what label does {s} carry?|as what is {s} in the inventory?|which inventory number belongs to {o}?",
    ),
}


def own_statements(key: str) -> list[str]:
    """Return the further sentences that belong to one relation."""
    return [*MORE[key][0].split("|"), *_FURTHER[key][0].split("|"), *STYLED[key].split("|")]


def own_questions(key: str) -> list[str]:
    """Return the further questions that belong to one relation."""
    return [*MORE[key][1].split("|"), *_FURTHER[key][1].split("|")]


def question_frames(key: str) -> list[str]:
    """Return the question frames that suit the relation's values."""
    frames = QUESTION_FRAMES.split("|")
    if NOUNS[key][1].startswith("who "):
        frames += PERSON_FRAMES.split("|")
    return frames


def cross(key: str, frames: Sequence[str]) -> list[str]:
    """Cross frames with the nouns of a relation and the form of its values."""
    nouns, form = NOUNS[key]
    value = form.removeprefix("who ")
    return [
        frame.replace("{n}", noun).replace("{w}", value)
        for frame in frames
        for noun in nouns.split("|")
    ]
