"""Sentence generator for the tiny Qwen3-ASR demo model.

Everything is spelled out the way it is spoken ("three thirty", "twenty-one"),
in sentence case with basic punctuation.  `split_of()` assigns every sentence to
"train" or "test" by a hash of its words, so no test sentence is ever trained on.
"""

import re
import zlib
from pathlib import Path

W = str.split

FIRST = W("""Alice Adam Amanda Amy Andrew Angela Anna Anthony Arthur Barbara Ben Betty Brian Carla Carlos Carol
Caroline Charles Charlotte Chris Christine Claire Daniel David Dennis Diana Donald Donna Dorothy Edward Elena Eli
Elizabeth Emily Emma Eric Ethan Eva Felix Fiona Frank Gary George Grace Greg Hannah Harry Helen Henry Hugo Ian Irene
Isabel Jack Jacob James Jane Janet Jason Jennifer Jessica Jim Joan John Jonathan Joseph Joshua Julia Karen Kate Keith
Kelly Kevin Laura Lee Leo Linda Lisa Lucy Luke Marcus Margaret Maria Mark Martin Mary Matthew Max Megan Michael Michelle
Mike Monica Nancy Nathan Nicole Nina Noah Oliver Olivia Oscar Pamela Patricia Patrick Paul Peter Philip Rachel Ralph
Raymond Rebecca Richard Robert Roger Rosa Roy Ruth Ryan Samantha Samuel Sandra Sarah Scott Sean Simon Sofia Stephen
Steve Susan Teresa Theo Thomas Tim Tom Tony Tracy Tyler Vanessa Victor Victoria Vincent Walter Wendy William Zoe""")
LAST = W("""Adams Allen Anderson Baker Bell Bennett Brooks Brown Butler Campbell Carter Clark Coleman Collins Cook
Cooper
Cox Davis Diaz Edwards Evans Fisher Foster Garcia Gray Green Griffin Hall Harris Hayes Henderson Hill Howard Hughes
Jackson Jenkins Johnson Jones Kelly King Lewis Long Lopez Marshall Martinez Miller Mitchell Moore Morgan Morris Murphy
Nelson Parker Perry Peterson Phillips Powell Price Reed Reyes Richardson Rivera Roberts Robinson Rogers Ross Russell
Sanders Scott Simmons Smith Stewart Sullivan Taylor Thompson Turner Walker Ward Watson White Williams Wilson Wood
Wright Young""")
PLACES = [
    s.strip()
    for s in """Boston, Chicago, London, Paris, Berlin, Madrid, Rome, Tokyo, Sydney, Toronto, Dublin,
Oslo, Vienna, Prague, Lisbon, Athens, Denver, Seattle, Portland, Austin, Dallas, Houston, Phoenix, San Diego,
San Francisco, Los Angeles, New York, Washington, Philadelphia, Atlanta, Miami, Orlando, Detroit, Cleveland,
Minneapolis, Nashville, Memphis, Montreal, Vancouver, Edinburgh, Glasgow, Manchester, Bristol, Cambridge, Oxford,
Brussels, Amsterdam, Hamburg, Munich, Zurich, Geneva, Milan, Venice, Barcelona, Stockholm, Copenhagen, Helsinki, Warsaw,
Budapest, Istanbul, Cairo, Nairobi, Mumbai, Delhi, Singapore, Hong Kong, Shanghai, Beijing, Seoul, Melbourne, Auckland,
Mexico City, Lima, California, Texas, Florida, Ohio, Canada, Germany, France, Spain, Italy, Japan, India, China,
Brazil, Australia, Ireland, Scotland, England, Norway, Sweden, Poland, Greece, Kenya, Egypt""".replace("\n", " ").split(
        ","
    )
]
SPOTS = [
    s.strip()
    for s in """office, kitchen, garage, garden, basement, library, airport, station, bank, post office,
supermarket, bakery, pharmacy, hospital, clinic, school, university, gym, park, museum, theater, cinema, restaurant,
cafe, hotel, church, stadium, beach, lake, river, bridge, market, mall, bookstore, hardware store, parking lot, lobby,
conference room, meeting room, warehouse, factory, laboratory, workshop, studio, town hall, police station,
fire station, gas station, bus stop, train station, front desk, back door, main entrance, second floor, top shelf,
living room, bedroom, bathroom, hallway, attic, balcony, rooftop, playground, swimming pool, tennis court, zoo, harbor,
farm, barn, field, forest, mountain cabin, village, city center, corner shop, dry cleaner, barber shop,
dentist's office, doctor's office, court house, embassy, art gallery, concert hall, subway""".replace("\n", " ").split(
        ","
    )
]
FOOD = [
    s.strip()
    for s in """milk, bread, butter, eggs, cheese, apples, bananas, oranges, lemons, grapes, cherries,
strawberries, blueberries, peaches, pears, tomatoes, potatoes, onions, garlic, carrots, celery, spinach, lettuce,
cabbage, broccoli, mushrooms, peppers, beans, rice, pasta, noodles, flour, sugar, salt, pepper, honey, jam, coffee, tea,
juice, water, wine, beer, yogurt, cream, chocolate, cookies, crackers, cereal, oatmeal, chicken, beef, pork, ham, bacon,
sausages, turkey, fish, salmon, tuna, shrimp, soup, salad, pizza, sandwiches, olive oil, vinegar, mustard, ketchup,
cinnamon, ginger, basil, parsley, almonds, walnuts, peanuts, popcorn, ice cream, cake, pie, muffins, bagels, pancakes,
syrup, corn, peas, cucumbers, pumpkin, squash, avocados, mangoes, pineapple, watermelon, raisins, tofu,
tortillas, dish soap, paper towels, toilet paper, toothpaste, shampoo, batteries, light bulbs, trash bags, dog food,
cat food, napkins, candles, laundry detergent, aluminum foil""".replace("\n", " ").split(",")
]
THINGS = [
    s.strip()
    for s in """report, budget, invoice, contract, proposal, presentation, spreadsheet, email, letter,
package, ticket, passport, laptop, charger, phone, camera, printer, projector, keyboard, monitor, notebook, folder,
document, form, application, manual, map, schedule, calendar, agenda, summary, draft, review, survey, receipt, bill,
check, key, umbrella, jacket, coat, sweater, shirt, suit, dress, shoes, boots, hat, scarf, gloves, glasses, watch, ring,
necklace, wallet, purse, backpack, suitcase, box, bag, bottle, cup, plate, bowl, knife, fork, spoon, table, chair, desk,
lamp, couch, pillow, blanket, towel, mirror, clock, picture, painting, book, magazine, newspaper, dictionary, guitar,
piano, violin, drum, bicycle, car, truck, van, boat, ladder, hammer, screwdriver, drill, saw, shovel, rake, hose,
bucket, rope, tape, glue, scissors, paint, brush, lock, window, door, roof, fence, gate, sink, stove, oven, fridge,
dishwasher, washing machine, dryer, heater, fan, radio, television, speaker, microphone, headphones, remote, router,
cable, battery, engine, tire, brake, mirror, website, database, server, app, password, account, file, backup, update,
license, certificate, prescription, medicine, thermometer, bandage, stroller, crib, toy, puzzle, game, ball, kite, tent,
flashlight, compass, helmet, skis, racket, trophy, medal, flag, banner, poster, sign, menu, recipe, basket, vase, plant,
flower, tree, seed, lawn mower, sandwich, birthday card, thank you note, guest list, floor plan, sales figures,
test results, meeting notes, project plan, tax return, insurance policy, bank statement, phone number, address,
job description, press release, user guide, style guide, travel itinerary, expense report""".replace("\n", " ").split(
        ","
    )
]
TOPICS = [
    s.strip()
    for s in """the quarterly budget, the marketing campaign, the product launch, the hiring plan,
the new website, customer feedback, the sales forecast, the security review, the training program, the annual report,
the supply chain, the office move, the holiday schedule, the software update, the design review, the release date,
the project timeline, the testing phase, the user interface, the legal agreement, the price increase, the partnership,
the conference, the fundraiser, the road map, the cost estimate, the travel policy, the insurance claim,
the research paper, the data migration, the network outage, the quality report, the delivery delay, the new logo,
the school play, the wedding, the family reunion, the summer trip, the kitchen renovation, the science project,
the neighborhood cleanup, the charity auction, the book club, the soccer practice, the piano lesson, the garden project,
the weather forecast, the election, the history exam, the vaccination, the bus route, the parking permit,
the energy bill, the recycling program, the safety inspection, the water leak, the mortgage, the retirement party,
the customer support queue, the onboarding process, the mobile app, the search feature, the payment system,
the error message, the translation, the video recording, the photo album, the podcast episode, the newsletter,
the staff survey, the board meeting, the investor call, the audit, the warranty, the refund, the discount,
the inventory, the shipping address, the return policy, the patent, the prototype, the experiment, the field
trip""".replace("\n", " ").split(",")
]
ADJ = W("""big small new old good bad great nice long short early late quick slow easy hard cheap expensive clean dirty
bright dark warm cold hot cool dry wet loud quiet heavy light full empty open closed strong weak soft rough smooth sharp
sweet sour bitter fresh broken missing important urgent simple complex clear useful useless helpful friendly polite rude
happy sad angry tired busy free ready careful careless honest brave calm nervous proud lucky strange normal special
common rare modern ancient digital local global public private final initial updated detailed brief accurate wrong
correct perfect terrible wonderful beautiful ugly tiny huge enormous narrow wide deep shallow thick thin round square
flat red blue green yellow orange purple pink brown black white gray silver golden wooden plastic metal electric
automatic manual temporary permanent official personal professional comfortable dangerous safe delicious boring
interesting exciting surprising reasonable impressive confusing reliable flexible""")
ADV = W("""quickly slowly carefully quietly loudly clearly politely easily suddenly finally recently usually often
always
never sometimes rarely certainly probably definitely obviously honestly basically actually exactly nearly almost
completely partly mostly simply directly immediately eventually together separately twice again""")
DAYS = W("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = W("January February March April May June July August September October November December")
ONES = W(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = W("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
ORD = W("""zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth
fourteenth
fifteenth sixteenth seventeenth eighteenth nineteenth twentieth""")
PEOPLE = [
    s.strip()
    for s in """the manager, the director, my boss, my brother, my sister, my mother, my father,
my wife, my husband, my son, my daughter, my neighbor, my friend, my cousin, my uncle, my aunt, my grandmother,
my grandfather, the teacher, the doctor, the dentist, the nurse, the lawyer, the accountant, the plumber,
the electrician, the engineer, the designer, the developer, the customer, the client, the supplier, the landlord,
the mechanic, the driver, the waiter, the chef, the librarian, the coach, the mayor, the professor, the student,
the intern, the assistant, the receptionist, the team, the committee, the marketing team, the sales team,
the support team, the whole family, everyone, somebody, nobody, the kids, the children, the baby, the dog, the cat,
the editor, the author, the pilot, the police officer, the firefighter, the farmer, the carpenter, the painter,
the musician, the photographer, the scientist, the tailor, the baker, the butcher, the volunteer, the president,
the vice president, the chairman, the secretary, the analyst, the consultant, the contractor, the architect""".replace(
        "\n", " "
    ).split(",")
]
SING = [p for p in PEOPLE if p not in ("the kids", "the children")]
TASKS = [
    s.strip()
    for s in """call {p}, email {p}, text {p}, meet {p}, thank {p}, ask {p} about {t}, tell {p} about {t},
remind {p} about {t}, send {p} the {o}, give {p} the {o}, show {p} the {o}, talk to {p} about {t}, pick up the {o},
drop off the {o}, buy {f}, buy {f} and {f}, order {f}, get some {f}, fix the {o}, clean the {s}, paint the {s},
check the {o}, review the {o}, finish the {o}, print the {o}, sign the {o}, update the {o}, cancel the {o}, return
the {o},
find the {o}, move the {o} to the {s}, bring the {o} to the {s}, put the {o} in the {s}, take {p} to the {s},
book a flight to {c}, book a table for {n}, reserve a room at the {s}, renew the {o}, pay the {o}, water the plants,
walk the dog, feed the cat, take out the trash, do the laundry, wash the dishes, cook dinner, bake a cake,
mow the lawn, change the light bulb, charge the phone, turn off the lights, lock the front door, close the windows,
open the {o}, save the {o}, delete the old {o}, copy the {o}, scan the {o}, translate the {o}, prepare the {o},
write about {t}, read about {t}, think about {t}, plan {t}, discuss {t}, schedule a meeting about {t}, join the call,
start the recording, stop the timer, set an alarm for {h}, wake up at {h}, leave the house at {h}, go to the {s},
stop by the {s}, drive to {c}, fly to {c}, move to {c}, visit {p}, help {p}, invite {p}, wait for {p}, look for the {o},
measure the {o}, repair the {o}, replace the {o}, install the {o}, test the {o}, compare the {o} with the {o},
borrow a {o}, lend {p} the {o}, sell the {o}, wrap the {o}, ship the {o}, publish the {o}, upload the {o},
download the {o}, share the {o} with {p}, practice the piano, study for the exam, apply for the job, quit the gym,
count the {o}, sort the {o}, fold the clothes, iron the shirt, sweep the floor, refill the {o}, unpack the
{o}""".replace("\n", " ").split(",")
]
WEATHER = [
    s.strip()
    for s in """sunny, cloudy, rainy, windy, foggy, snowy, stormy, icy, humid, freezing, chilly, mild,
partly cloudy, clear and cold, warm and dry, hot and sticky""".replace("\n", " ").split(",")
]
UNITS = W("""dollars euros pounds cents percent minutes hours days weeks months years miles kilometers meters feet
inches
degrees grams ounces gallons liters people seats copies boxes pages steps points votes customers students employees""")
SHORT = [
    s.strip()
    for s in """yes, no, okay, sure, thank you, thanks a lot, good morning, good afternoon, good evening,
good night, hello, hello everyone, goodbye, see you tomorrow, see you later, talk to you soon, never mind, no problem,
of course, sounds good, that is right, that is correct, not yet, maybe later, excuse me, I am sorry, you are welcome,
hold on, one moment please, come in, let's go, well done, good luck, take care, stop, start, continue, cancel, repeat,
next, back, help, done, exactly, absolutely, press record, test, testing, this is a test, new note, end of note,
delete that, save it, call me back, what time is it, how are you, where are you, what happened, who is there,
are you ready, can you hear me, please wait, not today, right now, hurry up, be careful, I agree, I do not know,
I have no idea, me too, why not, that is all, let me think, let us begin, happy birthday, congratulations, welcome,
activated, password, please try again, goodbye for now, one more time, all done""".replace("\n", " ").split(",")
]


def number(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        s = ONES[n // 100] + " hundred"
        if n % 100:
            s += (" and " if n % 3 == 0 else " ") + number(n % 100)
        return s
    if n < 1000000:
        s = number(n // 1000) + " thousand"
        return s + (" " + number(n % 1000) if n % 1000 else "")
    return number(n // 1000000) + " million" + (" " + number(n % 1000000) if n % 1000000 else "")


def ordinal(n):
    if n <= 20:
        return ORD[n]
    return TENS[n // 10] + "-" + ORD[n % 10] if n % 10 else {30: "thirtieth"}[n]


class Grammar:
    def __init__(self, rng, words=(), kjv=()):
        self.r, self.words, self.kjv = rng, list(words), list(kjv)

    # --- small parts -----------------------------------------------------
    def c(self, xs):
        return xs[int(self.r.random() * len(xs))]

    def n(self):
        k = self.r.random()
        if k < 0.5:
            return self.r.randint(2, 20)
        if k < 0.8:
            return self.r.randint(2, 99)
        if k < 0.95:
            return self.r.randint(100, 999)
        return self.r.choice([1000, 100, 10]) * self.r.randint(11, 99)

    def person(self):
        k = self.r.random()
        if k < 0.45:
            return self.c(FIRST)
        if k < 0.55:
            return self.c(FIRST) + " " + self.c(LAST)
        if k < 0.62:
            return self.c(["Mister ", "Doctor ", "Professor "]) + self.c(LAST)
        return self.c(SING)

    def hour(self):
        h = number(self.r.randint(1, 12))
        k = self.r.random()
        if k < 0.3:
            return h + " o'clock"
        if k < 0.55:
            return (
                h
                + " "
                + self.c(["fifteen", "thirty", "forty-five", "ten", "twenty", "twenty-five", "fifty", "oh five"])
            )
        if k < 0.7:
            return self.c(["half past ", "quarter past ", "quarter to ", "ten past ", "five to "]) + h
        if k < 0.8:
            return self.c(["noon", "midnight"])
        return h + self.c([" in the morning", " in the afternoon", " in the evening", " at night"])

    def date(self):
        d = ordinal(self.r.randint(1, 31)) if self.r.random() < 0.97 else "thirtieth"
        return self.c([self.c(MONTHS) + " " + d, "the " + d + " of " + self.c(MONTHS)])

    def when(self):
        k = self.r.random()
        if k < 0.25:
            return "on " + self.c(DAYS) + (self.c(["", " morning", " afternoon", " evening", " night"]))
        if k < 0.4:
            return "at " + self.hour()
        if k < 0.5:
            return "on " + self.c(DAYS) + " at " + self.hour()
        if k < 0.6:
            return "on " + self.date()
        if k < 0.7:
            return (
                self.c(["next", "this", "every", "by"])
                + " "
                + self.c(DAYS + ["week", "month", "weekend", "year"][:0] + DAYS)
            )
        if k < 0.78:
            return "in " + number(self.r.randint(2, 50)) + " " + self.c(W("minutes hours days weeks months years"))
        if k < 0.84:
            return (
                self.c(["before", "after", "by", "until"])
                + " "
                + self.c([self.hour(), "lunch", "dinner", "breakfast", "work", "school", "the meeting", "the weekend"])
            )
        return self.c(
            [
                "tomorrow",
                "today",
                "tonight",
                "tomorrow morning",
                "tomorrow afternoon",
                "this morning",
                "this afternoon",
                "this evening",
                "next week",
                "next month",
                "next year",
                "this weekend",
                "right away",
                "as soon as possible",
                "later today",
                "at the end of the month",
                "in the spring",
                "in the summer",
                "in the fall",
                "in the winter",
                "first thing in the morning",
                "over the holidays",
            ]
        )

    def past(self):
        return self.c(
            [
                "yesterday",
                "last night",
                "last week",
                "last month",
                "last year",
                "this morning",
                "an hour ago",
                "two days ago",
                "last " + self.c(DAYS),
                "on " + self.c(DAYS),
                "a few minutes ago",
                "at " + self.hour(),
                number(self.r.randint(2, 30)) + " " + self.c(W("minutes hours days weeks months years")) + " ago",
            ]
        )

    def thing(self):
        return (self.c(ADJ) + " " if self.r.random() < 0.35 else "") + self.c(THINGS)

    def task(self):
        return self.fill(self.c(TASKS))

    def spot(self):
        return "the " + self.c(SPOTS) if self.r.random() < 0.7 else self.c(PLACES)

    def digits(self, k=None):
        k = k or self.r.randint(2, 7)
        return " ".join(self.c(ONES[:10]) for _ in range(k))

    def fill(self, t):
        f = {
            "p": self.person,
            "t": lambda: self.c(TOPICS),
            "o": self.thing,
            "f": lambda: self.c(FOOD),
            "s": lambda: self.c(SPOTS),
            "c": lambda: self.c(PLACES),
            "n": lambda: number(self.n()),
            "h": self.hour,
            "w": self.when,
            "y": self.past,
            "k": self.task,
            "a": lambda: self.c(ADJ),
            "v": lambda: self.c(ADV),
            "l": self.spot,
            "d": self.date,
            "u": lambda: self.c(UNITS),
            "e": lambda: self.c(WEATHER),
            "g": self.digits,
            "D": lambda: self.c(DAYS),
            "F": lambda: self.c(FIRST),
            "L": lambda: self.c(LAST),
            "x": lambda: self.c(self.words) if self.words else self.c(ADJ),
        }
        return re.sub(r"\{(\w)\}", lambda m: f[m.group(1)](), t)

    TEMPLATES = tuple(
        s.strip()
        for s in """
Remember to {k} {w}.|Don't forget to {k} {w}.|I need to {k} {w}.|Please {k} {w}.|Please {k}.|Can you {k} {w}?
Could you {k}, please?|We should {k} {w}.|Let's {k} {w}.|I have to {k} before I {k}.|Note to self, {k}.
Reminder, {k} {w}.|{p} will {k} {w}.|{p} wants to {k} {w}.|{p} asked me to {k}.|{p} said that {p} will {k}.
{p} is going to {k}, and then {k}.|If {p} can {k}, I will {k}.|When do we {k}?|Why did {p} {k}?|Who is going to {k}?
Did {p} {k} {y}?|Did you {k}?|How do I {k}?|First {k}, then {k}, and finally {k}.|Make sure to {k} {w}.
The meeting about {t} is {w}.|The meeting starts at {h}.|The meeting with {p} was moved to {D} at {h}.
We talked about {t} and {t}.|Today we discussed {t}.|The next topic is {t}.|{p} gave an update on {t}.
{p} is working on {t}.|The deadline for {t} is {d}.|We need {n} {u} for {t}.|The {o} costs {n} {u}.
The total is {n} {u}.|We sold {n} {u} {y}.|About {n} percent of {p}'s work is {a}.|The price went up by {n} percent.
There are {n} {u} in the {s}.|I saw {p} at {l} {y}.|{p} is at {l}.|{p} left the {o} at {l}.|The {o} is in the {s}.
Where is the {o}?|Where did {p} put the {o}?|Is the {o} {a} or {a}?|The {o} is {v} {a}.|The {o} looks {a} and {a}.
The {a} {o} is next to the {a} {o}.|I bought {f}, {f}, and {f} {y}.|We need {f}, {f}, {f}, and some {f}.
For dinner we had {f} with {f}.|The recipe needs {n} grams of {f}.|Add the {f} and stir for {n} minutes.
The weather in {c} is {e} today.|It will be {e} {w}.|It was {e} and {a} in {c} {y}.|It is {n} degrees outside.
The flight to {c} leaves at {h}.|The train from {c} to {c} takes {n} hours.|My flight number is {g}.
My phone number is {g}.|The code is {g}.|The room number is {g}.|Call me at {g}.|Extension {g}.|{g}.
My name is {F} {L}.|This is {F} calling about {t}.|Hi {F}, this is {F}.|Hello {F}, I wanted to talk about {t}.
{F} and {F} are {a} friends.|{F}, {F}, and {F} will join us {w}.|{F} lives in {c}.|{F} moved from {c} to {c} {y}.
The address is {n} {L} Street.|Turn left at the {s}, then go straight for {n} miles.|It happened on {d}.
His birthday is on {d}.|The store opens at {h} and closes at {h}.|The appointment is on {d} at {h}.
I think {t} is {a}.|I don't think the {o} is {a}.|{p} thinks that {t} will be {a}.|It was a {a} and {a} day.
We had a {a} time in {c}.|The {a} {o} belongs to {p}.|{p} {v} forgot the {o}.|{p} spoke {v} about {t}.
That is a {a} idea.|What a {a} {o}!|This is {v} {a}.|The main problem is {t}.|We agreed to {k} {w}.
Action item for {F}, {k} {w}.|Action items, {k} and {k}.|{p} is responsible for {t}.|The result was {a}.
According to {p}, the {o} was {a}.|I will be {a} {w}.|The {s} is {a} but {a}.|The {o} broke {y}.
Nobody told me about {t}.|Everyone liked the {a} {o}.|I lost my {o} near the {s}.|My {o} is {a}.
I am {v} {a} about {t}.|The password has {n} letters.|Page {n}.|Number {n}.|{n} {u}.|Chapter {n}, {t}.
Do you have the {o}?|Would you like {f} or {f}?|I would like {f} and {f}, please.|How much does the {o} cost?
How many {u} do we have?|What is the {o} for?|Have you seen the {a} {o}?|Are you coming to {c} {w}?
The {x} {o} was {x}.|He said {x} and {x}.|The word is {x}.|I heard something about the {x} and the {x}.
She wrote {x}, {x}, and {x} on the {o}.|They call it the {x} {x}.|Search for {x} {x}.|That {x} is very {x}.
""".replace("\n", "|").split("|")
        if s.strip()
    )

    def template(self):
        s = self.fill(self.c(self.TEMPLATES))
        return s[0].upper() + s[1:]

    def random_words(self):
        k = self.r.randint(1, 12)
        ws = [self.c(self.words) for _ in range(k)]
        s = ws[0]
        for w in ws[1:]:
            s += (", " if self.r.random() < 0.08 else " ") + w
        return s[0].upper() + s[1:] + self.c(".....?")

    def short(self):
        k = self.r.random()
        if k < 0.6:
            s = self.c(SHORT)
            q = s.split()[0] in ("what", "how", "where", "who", "are", "can", "why")
            return s[0].upper() + s[1:] + ("?" if q else ".")
        if k < 0.75:
            s = self.digits(self.r.randint(1, 4))
        elif k < 0.85:
            s = self.when()
        else:
            s = self.c(
                [self.hour, self.date, self.person, self.thing, self.spot, self.task, lambda: number(self.n())]
            )()
        return s[0].upper() + s[1:] + "."

    def sentence(self):
        k = self.r.random()
        if k < 0.62:
            return self.template()
        if k < 0.72:
            return self.short()
        if k < 0.88 and self.words:
            return self.random_words()
        if self.kjv:
            return self.c(self.kjv)
        return self.template()


def norm_words(text):
    return re.sub(r"[^a-z0-9' ]+", " ", text.lower().replace("-", " ")).split()


def split_of(text):
    """'test' for about one sentence in forty, by hash; all others are 'train'.

    Very short phrases (up to 3 words) are too few to hold out: always 'train'."""
    w = norm_words(text)
    if len(w) <= 3:
        return "train"
    return "test" if zlib.crc32(" ".join(w).encode()) % 40 == 7 else "train"


def load_kjv(path):
    """Sentences of the King James text (one 'Book1:1 text' verse a line)."""
    out = []
    for line in Path(path).read_text(encoding="utf-8", errors="ignore").splitlines():
        t = line.split(" ", 1)[-1].strip()
        t = re.sub(r"[()\[\]<>{}]", "", t).replace("LORD", "Lord").replace("GOD", "God")
        t = re.sub(r"[;:]", ",", t)
        for part in re.split(r"(?<=[.?!])\s+", t):
            s = part.strip(" ,")
            if 3 <= len(s.split()) <= 26 and re.fullmatch(r"[A-Za-z ,.?!'-]+", s):
                out.append(s[0].upper() + s[1:] + ("" if s[-1] in ".?!" else "."))
    return out
