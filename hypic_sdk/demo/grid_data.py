"""Verb phrases of the relations, to be crossed with constructions in `grid`.

Row: what a question asks for; phrases of the subject, each a verb and its complement parted by "~";
phrases of the value, which take the subject as `{o}`. Phrases are parted by "|".
"""

from __future__ import annotations

from collections.abc import Mapping

# ruff: noqa: E501 - one list a line reads better than wrapped strings
KERNELS: Mapping[str, tuple[str, str, str]] = {
    "born_in": (
        "which town",
        "was born~in {v}|came into the world~in {v}|first saw the light of day~in {v}|is a native~of {v}|hails~from {v}|began life~in {v}|comes by birth~from {v}",
        "saw the birth of {o}|is the birthplace of {o}|is the town of birth of {o}|is the native town of {o}",
    ),
    "born_year": (
        "which year",
        "was born~in {v}|came into the world~in {v}|first saw the light of day~in {v}|began life~in {v}|was born~in the year {v}|was a child~of the year {v}",
        "saw the birth of {o}|is the year of birth of {o}|was the year that brought {o} into the world|is the birth year of {o}",
    ),
    "lives_in": (
        "which town",
        "lives~in {v}|has a house~in {v}|resides~in {v}|dwells~in {v}|has settled~in {v}|is at home~in {v}|rents a flat~in {v}|is a resident~of {v}",
        "is home to {o}|is the home town of {o}|has {o} among its residents|is the place of residence of {o}",
    ),
    "works_for": (
        "which company",
        "works~for {v}|is employed~by {v}|has a job~at {v}|earns a living~at {v}|is on the staff~of {v}|is an employee~of {v}|draws a salary~from {v}|holds a post~at {v}|was hired~by {v}",
        "employs {o}|pays the wages of {o}|is the employer of {o}|has {o} on its staff|hired {o}",
    ),
    "job": (
        "which job",
        "works~as {a}|earns a living~as {a}|is employed~as {a}|found work~as {a}|is known~as {a}|makes money~as {a}|practises~as {a}",
        "is the job of {o}|is the profession of {o}|is the occupation of {o}",
    ),
    "pet": (
        "which animal",
        "keeps~{a}|owns~{a}|looks after~{a}|shares the house~with {a}|feeds~{a}|has adopted~{a}|cares~for {a}|lives~with {a}",
        "lives with {o}|belongs to {o}|waits at home for {o}|is the pet of {o}",
    ),
    "pet_name": (
        "which name",
        "calls the pet~{v}|named the pet~{v}|gave the pet the name~{v}|picked for the pet the name~{v}|christened the pet~{v}|calls the pet by the name~{v}",
        "is the name of the pet of {o}|is what the pet of {o} is called|is the name that {s} gave the pet",
    ),
    "colour": (
        "which colour",
        "likes best the colour~{v}|prefers the colour~{v}|loves the colour~{v}|is fond of the colour~{v}|has a liking for the colour~{v}|swears by the colour~{v}|chooses the colour~{v}",
        "is the favourite colour of {o}|pleases {o} more than any other colour|is the colour that {s} likes best|is the preferred colour of {o}",
    ),
    "food": (
        "which food",
        "likes best to eat~{v}|loves to eat~{v}|prefers to eat~{v}|would always choose to eat~{v}|eats most gladly~{v}|could eat every day~{v}|puts before every other dish~{v}",
        "is the favourite food of {o}|pleases {o} more than any other dish|is the food that {s} likes best|tastes best to {o}",
    ),
    "drink": (
        "which drink",
        "likes best to drink~{v}|mostly drinks~{v}|prefers to drink~{v}|always orders to drink~{v}|drinks most gladly~{v}|could drink all day~{v}|asks at the bar for~{v}",
        "is the favourite drink of {o}|pleases {o} more than any other drink|is the drink that {s} likes best|quenches the thirst of {o} best",
    ),
    "age": (
        "which age",
        "has reached~the age of {v}|is now~at the age of {v}|gives as age~{v}|turned this year~{v}|has come~to the age of {v}|is a person~of {v} years",
        "is the age of {o}|is the age that {s} has reached|is the number of years that {s} counts",
    ),
    "extension": (
        "which extension",
        "can be reached~at extension {v}|answers the phone~at extension {v}|is connected~under extension {v}|has been given~extension {v}|takes calls~at extension {v}|has on the desk~extension {v}",
        "is the extension of {o}|is the extension to dial for {o}|is the phone extension of {o}|is the extension that reaches {o}",
    ),
    "locker": (
        "which code",
        "opens the locker~with the code {v}|locks the locker~with the code {v}|uses for the locker~the code {v}|set the locker~to the code {v}|chose for the locker~the code {v}|types at the locker~the code {v}",
        "opens the locker of {o}|is the locker code of {o}|is the code for the locker of {o}|unlocks the locker of {o}",
    ),
    "hobby": (
        "which hobby",
        "spends free time~on {v}|relaxes~with {v}|has as a hobby~{v}|took up as a hobby~{v}|is mad~about {v}|passes the time~with {v}|enjoys after work~{v}",
        "is the hobby of {o}|fills the free hours of {o}|is the favourite pastime of {o}|is what {s} does for fun",
    ),
    "spouse": (
        "which person",
        "is married~to {v}|got married~to {v}|tied the knot~with {v}|exchanged rings~with {v}|took as a spouse~{v}|is wedded~to {v}|shares a married life~with {v}",
        "is married to {o}|is the spouse of {o}|took {o} in marriage|is the better half of {o}",
    ),
    "instrument": (
        "which instrument",
        "plays~the {v}|performs~on the {v}|makes music~on the {v}|learned to play~the {v}|has mastered~the {v}|practises~the {v}|gives concerts~on the {v}",
        "is the instrument of {o}|is the instrument that {s} plays|is what {s} plays in the orchestra",
    ),
    "language": (
        "which language",
        "speaks~{v}|is fluent~in {v}|was raised~in {v}|writes letters~in {v}|has a good command~of {v}|talks with the family~in {v}|is a native speaker~of {v}",
        "is the mother tongue of {o}|is the language of {o}|is the language that {s} speaks|is spoken by {o}",
    ),
    "mentor": (
        "which person",
        "was taught~by {v}|was trained~by {v}|studied~under {v}|learned the trade~from {v}|took lessons~from {v}|was a pupil~of {v}|was apprenticed~to {v}|has as a mentor~{v}",
        "taught {o}|trained {o}|is the mentor of {o}|was the teacher of {o}|gave lessons to {o}",
    ),
    "office": (
        "which room",
        "has an office~in the {v}|sits at a desk~in the {v}|does office work~in the {v}|keeps a desk~in the {v}|moved the office~to the {v}|receives visitors at the office~in the {v}",
        "holds the desk of {o}|serves {o} as an office|is the office of {o}|contains the desk of {o}",
    ),
    "founded": (
        "which year",
        "was founded~in {v}|was established~in {v}|was set up~in {v}|came into being~in {v}|opened for business~in {v}|has existed~since {v}|goes back~to {v}",
        "saw the founding of {o}|is the founding year of {o}|was the first year of {o}|is the year in which {s} was founded",
    ),
    "based_in": (
        "which town",
        "is based~in {v}|has its headquarters~in {v}|has its main office~in {v}|operates~from {v}|is run~from {v}|has its seat~in {v}|keeps its head office~in {v}",
        "is the seat of {o}|is home to {o}|holds the head office of {o}|is the town where {s} is based",
    ),
    "led_by": (
        "which person",
        "is led~by {v}|is run~by {v}|is headed~by {v}|is managed~by {v}|is directed~by {v}|has as its director~{v}|has at its head~{v}",
        "leads {o}|runs {o}|directs {o}|manages {o}|is the director of {o}|is in charge of {o}",
    ),
    "makes": (
        "which product",
        "makes~{v}|produces~{v}|manufactures~{v}|earns its money~with {v}|specialises~in {v}|turns out~{v}|is known as a producer~of {v}",
        "are made by {o}|are produced by {o}|come from the factory of {o}|are the main product of {o}",
    ),
    "staff": (
        "which number of people",
        "employs~{v} people|gives work~to {v} people|has a staff~of {v}|pays wages~to {v} people|keeps in work~{v} people|has on its payroll~{v} people|has grown~to {v} employees",
        "is the number of employees of {o}|is the staff size of {o}|is the number of people who work for {o}",
    ),
    "supplier": (
        "which company",
        "buys its supplies~from {v}|is supplied~by {v}|gets its parts~from {v}|relies for parts~on {v}|orders its parts~from {v}|receives its deliveries~from {v}|has as its supplier~{v}",
        "supplies {o}|delivers parts to {o}|is the supplier of {o}|provides {o} with parts",
    ),
    "river": (
        "which river",
        "lies~on the river {v}|stands on the banks~of the {v}|was built~beside the river {v}|is crossed~by the river {v}|grew up~around the river {v}|spreads~along the river {v}",
        "flows through {o}|runs through {o}|passes through {o}|is the river of {o}|divides {o} in two",
    ),
    "region": (
        "which region",
        "lies~in the region of {v}|belongs~to the region of {v}|is situated~in the region of {v}|forms part~of the region of {v}|is a town~in the region of {v}|is counted among the towns~of {v}",
        "is the region of {o}|has {o} within its borders|counts {o} among its towns|is the region where {s} lies",
    ),
    "mayor": (
        "which person",
        "has as its mayor~{v}|elected as mayor~{v}|is governed by its mayor~{v}|chose as mayor~{v}|made mayor~{v}|is led by mayor~{v}",
        "is the mayor of {o}|serves as mayor of {o}|governs {o} as mayor|became mayor of {o}|holds the office of mayor of {o}",
    ),
    "known_for": (
        "which attraction",
        "is known~for {v}|is famous~for {v}|is celebrated~for {v}|draws visitors~with {v}|owes its fame~to {v}|is proud~of {v}|is praised~for {v}",
        "made {o} famous|brings visitors to {o}|is the pride of {o}|is what {s} is known for",
    ),
    "population": (
        "which number of people",
        "has a population~of {v}|is home~to {v} people|is inhabited~by {v} people|gives a home~to {v} people|counts~{v} inhabitants|has grown~to {v} inhabitants|is a town~of {v} people",
        "is the population of {o}|is the number of inhabitants of {o}|is the number of people who live in {o}",
    ),
    "item_colour": (
        "which colour",
        "was painted~in {v}|shines~in {v}|comes~in {v}|is coloured~in {v}|is covered~in {v} paint|gleams~in {v}|has as its colour~{v}",
        "is the colour of {o}|is the shade of {o}|is the colour that {s} has",
    ),
    "weight": (
        "which weight",
        "weighs~{v} kilograms|comes on the scales~to {v} kilograms|has a weight~of {v} kilograms|was weighed~at {v} kilograms|tips the scales~at {v} kilograms|is a load~of {v} kilograms",
        "is the weight of {o}|is the mass of {o}|is what {s} weighs|was measured on the scales for {o}",
    ),
    "keeper": (
        "which person",
        "is kept~by {v}|is looked after~by {v}|is guarded~by {v}|was entrusted~to {v}|is in the care~of {v}|is cared for~by {v}|has as its keeper~{v}",
        "keeps {o}|looks after {o}|takes care of {o}|guards {o}|is the keeper of {o}|watches over {o}",
    ),
    "stored_in": (
        "which room",
        "is stored~in the {v}|is kept~in the {v}|stands~in the {v}|can be found~in the {v}|is housed~in the {v}|was taken~to the {v}|has its place~in the {v}",
        "houses {o}|contains {o}|holds {o}|is the place where {s} is stored",
    ),
    "material": (
        "which material",
        "is made~of {v}|was built~from {v}|consists~of {v}|was crafted~from {v}|was cut~from {v}|was formed~out of {v}",
        "is the material of {o}|was used to make {o}|is what {s} is made of|went into the making of {o}",
    ),
    "price": (
        "which sum",
        "costs~{v} crowns|was valued~at {v} crowns|is for sale~at {v} crowns|sells~for {v} crowns|is priced~at {v} crowns|can be had~for {v} crowns|was sold~for {v} crowns",
        "is the price of {o}|is the value of {o}|is what {s} costs|buys {o}",
    ),
    "serial": (
        "which number",
        "has in the inventory~the number {v}|is listed~under the number {v}|carries~the label {v}|is filed~under the number {v}|bears in the catalogue~the number {v}|is marked with~the number {v}",
        "is the inventory number of {o}|is the catalogue number of {o}|is the number on the label of {o}|is the number of {o} in the inventory",
    ),
}
