"""The story kinds of word problems, one function each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lmgym.envs.word_problems.story import Story

_THINGS = "stickers marbles shells cards buttons stamps beads pencils crayons coins badges acorns balloons ribbons"
THINGS = tuple(_THINGS.split())
GOODS = ("pens", "books", "apples", "cups", "plates", "toys", "shirts", "candles", "kites")
FOODS = ("cookies", "muffins", "plums", "pears", "rolls", "peaches", "cupcakes", "lemons")
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}


@dataclass(frozen=True)
class StoryKind:
    """A kind of story, and how many operations it supports."""

    tell: Callable[[Story, int], None]
    fewest: int
    most: int


def chain(story: Story, value: int, count: int, ups: Sequence[str], downs: Sequence[str], line: str, last: str) -> int:
    """Adds `count` events that each increase or decrease a quantity; `#` is the number of an event."""
    template = ""
    for index in range(count):
        grows = value < 6 or story.random.random() < 0.5
        template = story.choose(ups if grows else downs, besides=template)
        number = story.amount() if grows else story.part_of(value)
        story.then(index, template.replace("#", str(number)))
        value = story.work(last if index == count - 1 else line, value, "+" if grows else "-", number)
    return value


def collection(story: Story, operations: int) -> None:
    """Someone's things become more and fewer."""
    (who, friend), things = story.people(2), story.choose(THINGS)
    value = story.amount()
    story.say(f"{who} has {value} {things}.")
    ups = (f"{friend} gives {who} # more {things}.", f"{who} finds # more {things}.", f"{who} buys # more {things}.")
    downs = (f"{who} gives # {things} to {friend}.", f"{who} loses # {things}.", f"{who} sells # {things}.")
    final = f"{who} has # {things} now."
    plain = operations - 1 if operations > 1 and story.random.random() < 0.5 else operations
    value = chain(story, value, plain, ups, downs, f"{who.she} then has # {things}.", final)
    if plain < operations:
        _double_or_halve(story, value, who.name, friend.name, things, final)
    story.ask(f"How many {things} does {who} have now?")


def _double_or_halve(story: Story, value: int, who: str, friend: str, things: str, final: str) -> None:
    if value % 2 == 0 and story.random.random() < 0.5:
        story.say(f"Finally, {who} gives half of the {things} to {friend}.")
        story.work(final, value, "/", 2)
    else:
        factor, verb = story.choose(((2, "doubles"), (3, "triples")))
        story.say(f"Finally, a present from {friend} {verb} the number of {things} that {who} has.")
        story.work(final, value, "*", factor)


def packs(story: Story, operations: int) -> None:
    """Someone buys packs of things and then gains and loses some."""
    (who, friend), things = story.people(2), story.choose(THINGS)
    count, each = story.factor(), story.factor()
    container = story.choose(("packs", "boxes", "bags"))
    story.say(f"{who} buys {count} {container} of {things}.")
    story.say(f"There are {each} {things} in each of the {container}.")
    value = story.work(f"{who} buys # {things}.", count, "*", each)
    ups = (f"{friend} gives {who} # more {things}.", f"{who} finds # more {things} at home.")
    downs = (f"{who} gives # {things} to {friend}.", f"{who} uses # {things}.")
    chain(
        story, value, operations - 1, ups, downs, f"{who.she} then has # {things}.", f"{who} has # {things} in the end."
    )
    ending = "buy" if operations == 1 else "have in the end"
    story.ask(f"How many {things} does {who} {ending}?")


def bus(story: Story, operations: int) -> None:
    """Passengers get on and off at stops."""
    vehicle, place = story.choose((("bus", "stop"), ("train", "station"), ("ferry", "harbor"), ("tram", "stop")))
    value, stop = story.amount(), 0
    story.say(f"A {vehicle} sets off with {value} passengers.")
    while operations:
        place_line = f"After the {ORDINALS[stop]} {place}, there are # passengers on the {vehicle}."
        where = f"At the {ORDINALS[stop]} {place}"
        off_and_on = operations >= 2 and story.random.random() < 0.4
        if off_and_on:
            off, on = story.part_of(value), story.amount()
            story.say(f"{where}, {off} passengers get off and {on} get on.")
            value = story.work(f"{where}, # passengers stay on.", value, "-", off)
            value = story.work(place_line, value, "+", on)
        elif value < 6 or story.random.random() < 0.5:
            on = story.amount()
            story.say(f"{where}, {on} more passengers get on.")
            value = story.work(place_line, value, "+", on)
        else:
            off = story.part_of(value)
            story.say(f"{where}, {off} passengers get off.")
            value = story.work(place_line, value, "-", off)
        operations -= 2 if off_and_on else 1
        stop += 1
    story.ask(f"How many passengers are on the {vehicle} after the {ORDINALS[stop - 1]} {place}?")


def relate(story: Story, value: int, whose: str, clause: str, things: str, line: str) -> int:
    """States a quantity relative to the one before: more, fewer, times or a fraction of it."""
    way = story.choose(("more", "fewer", "times", "part"))
    if way == "more":
        number = story.amount()
        story.say(f"{clause} {number} more {things} than {whose}.")
        return story.work(line, value, "+", number)
    if way == "fewer":
        number = story.part_of(value)
        story.say(f"{clause} {number} fewer {things} than {whose}.")
        return story.work(line, value, "-", number)
    number = story.choose([number for number in TIMES if number <= story.size.factor])
    story.say(f"{clause} {(TIMES if way == 'times' else PARTS)[number]} as many {things} as {whose}.")
    return story.work(line, value, "*" if way == "times" else "/", number)


def comparison(story: Story, operations: int) -> None:
    """Several people have things, each number relative to the person before."""
    together = operations >= 2 and story.random.random() < 0.5
    people, things = story.people(operations + 1), story.choose(THINGS)
    value = before = story.amount()
    story.say(f"{people[0]} has {value} {things}.")
    relations = operations - 1 if together else operations
    for last, who in pairwise(people[: relations + 1]):
        before = value
        value = relate(story, value, last.name, f"{who} has", things, f"{who} has # {things}.")
    first, second = people[relations - 1], people[relations]
    if together:
        story.work(f"{first} and {second} have # {things} together.", before, "+", value)
        story.ask(f"How many {things} do {first} and {second} have together?")
    else:
        story.ask(f"How many {things} does {second} have?")


def sales(story: Story, operations: int) -> None:
    """Someone sells things over the days of a week, each number relative to the day before."""
    who = story.choose(("A baker", "A farmer", "A shop", "A florist", "A market stall"))
    things = {"A baker": "cakes", "A farmer": "melons", "A shop": "lamps", "A florist": "roses"}.get(who, "hats")
    seller, total_of_all = f"the {who[2:]}", operations % 2 == 0
    relations = operations // 2 if total_of_all else operations
    values = [story.amount()]
    story.say(f"{who} sells {values[0]} {things} on {DAYS[0]}.")
    for last, day in pairwise(DAYS[: relations + 1]):
        line = f"{seller} sells # {things} on {day}."
        values.append(relate(story, values[-1], f"on {last}", f"On {day}, {seller} sells", things, line))
    if not total_of_all:
        story.ask(f"How many {things} does {seller} sell on {DAYS[relations]}?")
        return
    total = values[0]
    for day, value in zip(DAYS[1:], values[1:], strict=False):
        days = f"On {DAYS[0]} and {day}" if day == DAYS[1] else f"From {DAYS[0]} to {day}"
        total = story.work(f"{days}, {seller} sells # {things}.", total, "+", value)
    days = f"on {DAYS[0]} and {DAYS[1]} together" if relations == 1 else f"from {DAYS[0]} to {DAYS[relations]} in total"
    story.ask(f"How many {things} does {seller} sell {days}?")


def shopping(story: Story, operations: int) -> None:
    """Someone buys several kinds of goods, and may ask for the change."""
    (who,), kinds = story.people(1), (operations + 1) // 2
    goods = story.random.sample(GOODS, kinds)
    total = 0
    with_change = operations % 2 == 0
    budget_place = len(story.sentences)
    for index, item in enumerate(goods):
        count, price = story.factor(), story.factor()
        also = "" if not index else "also "
        story.say(f"{who if not index else who.she} {also}buys {count} {item} for ${price} each.")
        cost = story.work(f"The {item} cost $#.", count, "*", price)
        sum_line = f"In total, {who.she} spends $#." if index == kinds - 1 else "So far, that is $#."
        total = story.work(sum_line, total, "+", cost) if index else cost
    if not with_change:
        story.ask(f"How much does {who} spend{' in total' if kinds > 1 else ''}?")
        return
    budget = total + story.amount()
    story.sentences.insert(budget_place, f"{who} goes shopping with ${budget}.")
    story.work(f"{who} has $# left.", budget, "-", total)
    story.ask(f"How many dollars does {who} have left?")


def journey(story: Story, operations: int) -> None:
    """Someone travels in stages at steady speeds, maybe towards a distant town."""
    (who,), stages = story.people(1), (operations + 1) // 2
    slow, quick = ("walks", "hikes"), ("rides a bike", "rides a horse")
    verb = story.choose(slow if story.size.factor <= 5 else quick if story.size.factor <= 12 else ("drives", "sails"))
    unit = story.choose(("miles", "kilometers"))
    to_go, total, start = operations % 2 == 0, 0, len(story.sentences)
    for index in range(stages):
        hours, speed = story.between(2, min(9, story.size.factor)), story.factor()
        when = f"On the {ORDINALS[index]} day, " if stages > 1 else ""
        story.say(f"{when}{who} {verb} for {hours} hours and covers {speed} {unit} each hour.")
        covered = f"{who} covers # {unit} on the {ORDINALS[index]} day." if stages > 1 else f"{who} covers # {unit}."
        stage = story.work(covered, hours, "*", speed)
        total = story.work(f"By then, {who.she} has covered # {unit}.", total, "+", stage) if index else stage
    if not to_go:
        story.ask(f"How many {unit} does {who} cover{' in total' if stages > 1 else ''}?")
        return
    length = total + story.amount()
    story.sentences.insert(start, f"{who} sets out for a town that is {length} {unit} away.")
    story.work(f"{who} still has # {unit} to go.", length, "-", total)
    story.ask(f"How many {unit} does {who} still have to go?")


def wages(story: Story, operations: int) -> None:
    """Someone earns money by the hour, and then gains and spends some."""
    (who,), work = story.people(1), story.choose(("washing cars", "walking dogs", "babysitting", "mowing lawns"))
    hours, wage = story.factor(), story.factor()
    if operations > 1:
        story.say(f"{who} starts with no money.")
    story.say(f"{who} earns ${wage} an hour for {work}.")
    story.say(f"{who.she} works for {hours} hours.")
    value = story.work(f"{who} earns $#.", wage, "*", hours)
    gifts, goods = ("an aunt", "a neighbor", "a cousin"), ("a shirt", "lunch", "a game", "a gift", "a hat")
    ups = tuple(f"{giver} gives {who} $#." for giver in gifts)
    downs = tuple(f"{who} spends $# on {item}." for item in goods)
    chain(story, value, operations - 1, ups, downs, f"{who.she} then has $#.", f"{who} has $# in the end.")
    if operations == 1:
        story.ask(f"How much does {who} earn?")
    else:
        story.ask(f"How many dollars does {who} have in the end?")


def sharing(story: Story, operations: int) -> None:
    """Someone has food, which grows and shrinks, and packs it equally."""
    (who, friend), food = (
        story.people(2),
        story.choose(FOODS),
    )
    value = story.amount()
    story.say(f"{who} has {value} {food}.")
    ups = (f"{friend} brings {who} # more {food}.", f"{who} gets # more {food} from the kitchen.")
    downs = (f"{who} gives # {food} to {friend}.", f"{who} finds that # {food} are spoiled and throws them away.")
    line = f"{who.she} then has # {food}."
    value = chain(story, value, operations - 1, ups, downs, line, line)
    count, container = story.divisor(value), story.choose(("boxes", "bags", "baskets", "plates"))
    one = {"boxes": "box"}.get(container, container[:-1])
    what = f"the {food}" if operations == 1 else f"all {who.own} {food}"
    story.say(f"{who.she} puts {what} equally {'onto' if one == 'plate' else 'into'} {count} {container}.")
    story.work(f"Each {one} holds # {food}.", value, "/", count)
    story.ask(f"How many {food} are {'on' if one == 'plate' else 'in'} each {one}?")
