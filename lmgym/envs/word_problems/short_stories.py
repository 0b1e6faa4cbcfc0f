"""Story kinds of word problems that support only a few operations, one function each."""

from __future__ import annotations

from lmgym.envs.word_problems.story import Story


def reading(story: Story, operations: int) -> None:
    """Someone reads so many pages a day; what is left is spread over further days."""
    (who,) = story.people(1)
    pages, days = story.between(3, 4 * story.size.factor), story.factor()
    more_days = story.factor()
    left = more_days * story.factor() if operations == 3 else story.amount()
    if operations > 1:
        story.say(f"{who} has a book with {pages * days + left} pages.")
    book = "the book" if operations > 1 else "a book"
    story.say(f"{who} reads {pages} pages of {book} a day for {days} days.")
    read = story.work(f"{who} reads # pages in {days} days.", pages, "*", days)
    if operations == 1:
        story.ask(f"How many pages does {who} read in all?")
        return
    left = story.work("There are # pages left.", read + left, "-", read)
    if operations == 2:
        story.ask(f"How many pages does {who} still have to read?")
        return
    story.say(f"{who.she} wants to read the rest in {more_days} more days, the same number of pages each day.")
    story.work(f"{who.she} needs to read # pages a day.", left, "/", more_days)
    story.ask(f"How many pages does {who} need to read on each of those {more_days} days?")


def ages(story: Story, operations: int) -> None:
    """The ages in a family."""
    who, sister, cousin = story.people(3)
    age, older = story.between(4, 12), story.between(2, 9)
    story.say(f"{who} is {age} years old.")
    story.say(f"{who.own} friend {sister} is {older} years older than {who}.")
    value = story.work(f"{sister} is # years old.", age, "+", older)
    if operations == 1:
        story.ask(f"How old is {sister}?")
        return
    factor = 2 if value > 14 else 3
    story.say(f"{sister}'s teacher is {'twice' if factor == 2 else 'three times'} as old as {sister}.")
    value = story.work("The teacher is # years old.", value, "*", factor)
    if operations == 2:
        story.ask(f"How old is {sister}'s teacher?")
        return
    younger = story.between(3, value // 2)
    story.say(f"{cousin} is {younger} years younger than the teacher.")
    value = story.work(f"{cousin} is # years old.", value, "-", younger)
    if operations == 3:
        story.ask(f"How old is {cousin}?")
        return
    years = story.between(2, 20)
    story.work(f"In {years} years, {cousin} will be # years old.", value, "+", years)
    story.ask(f"How old will {cousin} be in {years} years?")


def practice(story: Story, operations: int) -> None:
    """Someone practises so many minutes at a time, so many times a day, for so many days."""
    (who,), what = story.people(1), story.choose(("the piano", "the violin", "chess", "juggling", "typing"))
    minutes, times, days = story.between(5, 5 * story.size.factor), story.between(2, 4), story.between(2, 7)
    story.say(f"{who} practices {what} {times} times a day.")
    story.say(f"Each time takes {minutes} minutes.")
    value = story.work(f"{who} practices for # minutes a day.", minutes, "*", times)
    if operations == 1:
        story.ask(f"How many minutes does {who} practice a day?")
        return
    story.say(f"{who.she} does this for {days} days.")
    value = story.work(f"In {days} days, {who} practices for # minutes.", value, "*", days)
    if operations == 2:
        story.ask(f"How many minutes does {who} practice in those {days} days?")
        return
    extra = story.amount()
    story.say(f"On the last day, {who.she} adds {extra} extra minutes.")
    story.work("With the extra minutes, that makes # minutes.", value, "+", extra)
    story.ask(f"How many minutes does {who} practice in those {days} days in total?")


def hens(story: Story, operations: int) -> None:
    """A farm gathers, uses and sells its eggs."""
    (who,), birds = story.people(1), story.choose(("hens", "ducks"))
    count, eggs = story.factor(), story.between(2, 5)
    story.say(f"{who} keeps {count} {birds}.")
    story.say(f"In a week, each of them lays {eggs} eggs.")
    value = story.work(f"The {birds} lay # eggs in a week.", count, "*", eggs)
    if operations == 1:
        story.ask(f"How many eggs do the {birds} lay in a week?")
        return
    eaten, price, weeks = story.part_of(value), story.factor(), story.between(2, 9)
    story.say(f"{who} eats {eaten} of the eggs each week{'.' if operations == 2 else ' and sells the rest.'}")
    value = story.work("That leaves # eggs.", value, "-", eaten)
    if operations == 2:
        story.ask("How many eggs are left each week?")
        return
    story.say(f"Each egg sells for ${price}.")
    value = story.work(f"{who} makes $# a week.", value, "*", price)
    if operations == 3:
        story.ask(f"How many dollars does {who} make in a week?")
        return
    story.work(f"In {weeks} weeks, {who} makes $#.", value, "*", weeks)
    story.ask(f"How many dollars does {who} make in {weeks} weeks?")


def teams(story: Story, operations: int) -> None:
    """A class is split into teams that each get equipment."""
    boys, girls = story.amount(), story.amount()
    place = story.choose(("class", "camp", "club"))
    story.say(f"There are {boys} boys and {girls} girls in a {place}.")
    value = story.work(f"There are # children in the {place}.", boys, "+", girls)
    if operations == 1:
        story.ask(f"How many children are in the {place}?")
        return
    each, gear = story.divisor(value), story.choose(("balls", "ropes", "hoops", "flags"))
    story.say(f"They all form teams of {each} children.")
    value = story.work("They form # teams.", value, "/", each)
    if operations == 2:
        story.ask("How many teams do they form?")
        return
    count = story.factor()
    story.say(f"Each team gets {count} {gear}.")
    story.work(f"The teams get # {gear}.", value, "*", count)
    story.ask(f"How many {gear} do the teams get in total?")


def tank(story: Story, operations: int) -> None:
    """A tank fills at a steady rate, and some of the water is used."""
    tank_name = story.choose(("tank", "pool", "barrel", "pond"))
    rate, minutes = story.factor(), story.factor()
    story.say(f"A pump puts {rate} liters of water into an empty {tank_name} every minute.")
    story.say(f"It runs for {minutes} minutes.")
    value = story.work("The pump puts in # liters.", rate, "*", minutes)
    if operations == 1:
        story.ask(f"How many liters of water are in the {tank_name} then?")
        return
    used = story.part_of(value)
    story.say(f"Then a gardener takes {used} liters out of the {tank_name}.")
    value = story.work("There are # liters left.", value, "-", used)
    if operations == 2:
        story.ask(f"How many liters of water are left in the {tank_name}?")
        return
    cans = story.divisor(value)
    story.say(f"The rest fills {cans} cans of the same size exactly.")
    story.work("Each can holds # liters.", value, "/", cans)
    story.ask("How many liters does each can hold?")


def saving(story: Story, operations: int) -> None:
    """Someone saves for something that costs more."""
    (who,), goal = story.people(1), story.choose(("bike", "guitar", "tent", "camera", "skateboard"))
    weekly, weeks, more_weeks, gift = story.factor(), story.factor(), story.factor(), story.amount()
    missing = more_weeks * story.factor() if operations == 4 else story.amount()
    saved = weekly * weeks
    price = saved + missing + (gift if operations >= 3 else 0)
    if operations > 1:
        story.say(f"{who} wants a {goal} that costs ${price}.")
    aim = "" if operations > 1 else f" for a {goal}"
    story.say(f"{who} saves ${weekly} a week{aim} for {weeks} weeks.")
    value = story.work(f"{who} saves $#.", weekly, "*", weeks)
    if operations == 1:
        story.ask(f"How many dollars does {who} save in {weeks} weeks?")
        return
    if operations >= 3:
        story.say(f"{who.own} grandmother adds ${gift}.")
        value = story.work(f"With the gift, {who.she} has $#.", value, "+", gift)
    value = story.work(f"{who.she} still needs $#.", price, "-", value)
    if operations < 4:
        story.ask(f"How many more dollars does {who} need?")
        return
    story.say(f"{who.she} wants to save the rest in {more_weeks} more weeks, the same amount each week.")
    story.work(f"{who.she} needs to save $# a week.", value, "/", more_weeks)
    story.ask(f"How many dollars does {who} need to save in each of those {more_weeks} weeks?")


def garden(story: Story, operations: int) -> None:
    """Someone plants rows; some plants are lost, and the rest is packed."""
    (who,), plants = story.people(1), story.choose(("carrots", "cabbages", "pumpkins", "onions", "turnips"))
    rows, each = story.factor(), story.factor()
    story.say(f"{who} plants {rows} rows of {plants} with {each} {plants} in each row.")
    value = story.work(f"{who} plants # {plants}.", rows, "*", each)
    if operations == 1:
        story.ask(f"How many {plants} does {who} plant?")
        return
    eaten = story.part_of(value)
    story.say(f"Rabbits eat {eaten} of them.")
    value = story.work(f"There are # {plants} left.", value, "-", eaten)
    if operations == 2:
        story.ask(f"How many {plants} are left?")
        return
    crates = story.divisor(value)
    story.say(f"{who} packs the rest equally into {crates} crates.")
    value = story.work(f"Each crate holds # {plants}.", value, "/", crates)
    if operations == 3:
        story.ask(f"How many {plants} are in each crate?")
        return
    price = story.factor()
    story.say(f"{who.she} sells all the {plants} of one crate for ${price} each.")
    story.work(f"The {plants} of one crate bring $#.", value, "*", price)
    story.ask(f"How many dollars do the {plants} of that crate bring?")
