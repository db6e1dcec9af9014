"""Words and sentences of the pages: real words among words that nobody can guess.

A text of real words in a random order cannot be guessed from its beginning, and an invented word
cannot be guessed from its first letters. So a model can only read what it sees. Every word, real or
invented, belongs to one of two splits by a checksum of its letters, and pages of one split never
show a word of the other, apart from the few words in `GLUE`.
"""

import zlib
from dataclasses import dataclass

import numpy as np

HELD_OUT_SHARE = 8  # one word in eight is held out

GLUE = "a an and as at by for from in is it of on or the to with".split()

REAL = """
able about above account across action active actual address advance advice after again against
agency agree airport allow almost alone along already although always amount analysis angle animal
annual another answer appear apply approach area argue around arrive article artist assess assume
attack author autumn average avoid balance bank barrier basic basin battery because become before
begin behind believe below benefit better between beyond bigger board body border bottle bottom
branch bread break bridge brief bright bring broad brother brown budget build burden business
button buyer cabin calendar camera campaign capital captain carbon careful carry castle catalog
cause center central century certain chain chamber chance change chapter charge chart check choice
circle citizen claim class clean clear climate clock close cloud coast coffee collect colour column
combine comfort common company compare complete concept concern conduct confirm connect consider
contain content contract control copper corner correct cost cotton council count country couple
courage course cover create credit cross culture current customer cycle damage danger daughter
debate decade decide declare decline deep defend define degree delay deliver demand depend deposit
depth describe desert design detail develop device differ digital dinner direct discover distance
district divide doctor document domain double draft drawing driver during duty eager early earth
eastern economy edge editor effect effort eight either electric element eleven empty enable energy
engine enjoy enough ensure enter entire equal error escape estate estimate evening event every
evidence exact example except exchange exist expand expect expert explain export express extend
extra fabric factor factory fair family famous farmer fashion father feature federal field fifth
figure final finger finish first five flavour flight floor flow focus follow force foreign forest
formal former forward found four frame freedom fresh friend frozen full function fund future
garden gather general gentle genuine glass global golden govern grain grand grant graph great green
ground group growth guard guess guide habit half handle happen harbour hardly harvest health heart
heavy height hidden history holiday honest horizon hotel hour house however human hundred husband
idea image impact import improve include income increase indeed index indoor industry inform
initial inner input insect inside inspect install instead insure intend interest invest island item
jacket joint journal journey judge junior just keen kernel kettle kitchen knife know label labour
ladder language large later launch lawyer layer leader league learn leather lecture legal length
lesson letter level library light limit linear liquid list little local logic long loose lower
lucky lunch machine magnet main major manage manner manual many margin market master match matter
measure medical medium meeting member memory mention merge metal method middle might mineral minor
minute mirror mixed mobile model modern moment money month moral morning mostly mother motion motor
mountain move much museum music mutual narrow nation native nature nearby nearly neck neither
network neutral never normal north notable notice number object observe obtain obvious ocean offer
office often only open operate opinion option orange order organ origin other outcome outer output
outside oven over owner oxygen package page paint paper parent park partly partner party passage
patient pattern payment peace people percent perform perhaps period permit person phase phone
photo phrase physical picture piece pilot place plain planet plant plastic plate player please
plenty pocket poem point police policy popular port position possible potato powder power practice
precise prefer prepare present press pretty prevent price primary prince print private problem
process produce profit program project promise proper protect prove provide public pump purpose
quality quantity quarter queen quick quiet quite radio rail random range rapid rare rate rather
reach reader ready reason receive recent record reduce refer reflect reform refuse region regular
reject relate release rely remain remote remove renew rent repair repeat replace report request
require rescue research resort respond rest result retail return reveal review reward rhythm right
river road robust rock role roof room rough round route routine royal rubber rule rural safety
sample sand save scale scene school science scope screen search season second secret section sector
secure select senior sense series serious serve service settle seven several shade shadow shallow
shape share sharp sheet shelf shift short should shoulder side signal silent silver similar simple
since single sister size skill slight slope slow small smooth social soft soil solid solve some
source south space speak special speed spend spirit split sport spread spring square stable staff
stage stand star state station steady steel step stock stone store storm story straight strange
stream street stress strong student study style subject succeed sudden sugar suggest summer supply
support sure surface survey sweet switch symbol system table talent target task teacher team tell
temple tend term test text than theory there thick thin thing think third thirty though thousand
three through ticket tidal tight timber title today together tomorrow tool topic total touch tour
toward tower town trace track trade traffic train transfer travel treat tree trend trial trip true
trust truth tube tunnel turn twelve twenty twice type under uniform union unique unit until update
upper urban urgent useful usual valley value various vector vehicle version vessel victory view
village virtual visible visit vital voice volume wagon wait walk wall warm warning waste watch water
wave wealth weather week weight welcome western whale wheel where whether which while white whole
wide width wild window winter wire wise within without wonder wood word work world worry worth
would write yard year yellow yesterday yield young zero zone
""".split()

ONSETS = """
b bl br c ch cl cr d dr f fl fr g gl gr h j k kl l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str
sw t th tr tw v w wh x y z
""".split()
VOWELS = "a a e e i i o o u ai ea ee ie oo ou y".split()
CODAS = "  b ck d f ft g k l lk m mp n nd ng nt p r rd rk rt s sh ss st t th w x z".split(" ")

SYMBOLS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def is_held_out(word: str) -> bool:
    """Whether a word belongs to the held-out split; capital letters do not matter."""
    return zlib.crc32(word.lower().encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Split:
    """One of the two halves of the data.

    Args:
        held_out: whether this is the half that training never shows.
    """

    held_out: bool = False

    def owns(self, word: str) -> bool:
        """Whether a page of this split may show a word."""
        return is_held_out(word) == self.held_out

    def real_words(self) -> list[str]:
        """The real words of this split."""
        return REAL_WORDS[self.held_out]


REAL_WORDS = {
    held_out: [word for word in REAL if is_held_out(word) == held_out] for held_out in (False, True)
}


class Wording:
    """Draws words, sentences, numbers and codes of one split.

    Args:
        rng: the source of randomness.
        split: which words may be drawn.
        invented: probability that a word is invented.
    """

    def __init__(self, rng: np.random.Generator, split: Split, invented: float = 0.4) -> None:
        self.rng = rng
        self.split = split
        self.invented = invented

    def word(self) -> str:
        """A word in small letters."""
        if self.rng.random() < self.invented:
            return self.invented_word()
        if self.rng.random() < 0.25:
            return self._choose(GLUE)
        return self._choose(self.split.real_words())

    def invented_word(self) -> str:
        """A word of one to three random syllables."""
        while True:
            syllables = int(self.rng.choice((1, 1, 1, 2, 2, 2, 3)))
            parts = []
            for _ in range(syllables):
                parts.append(self._choose(ONSETS) + self._choose(VOWELS) + self._choose(CODAS))
            word = "".join(parts)
            if self.split.owns(word):
                return word

    def number(self) -> str:
        """A number, an amount, a share or a year."""
        kind = int(self.rng.integers(0, 5))
        value = int(self.rng.integers(0, 10 ** int(self.rng.integers(1, 6))))
        if kind == 0:
            return f"{value / 100:.2f}"
        if kind == 1:
            return f"{value:,}"
        if kind == 2:
            return f"{value % 1000 / 10}%"
        if kind == 3:
            return f"${value}"
        return str(value)

    def code(self) -> str:
        """A code such as ``QX-4417``, ``R7/203`` or a date."""
        kind = int(self.rng.integers(0, 3))
        letters = "".join(self._choose(list(SYMBOLS)) for _ in range(int(self.rng.integers(1, 4))))
        digits = "".join(str(self.rng.integers(0, 10)) for _ in range(int(self.rng.integers(2, 6))))
        if kind == 0:
            return f"{letters}-{digits}"
        if kind == 1:
            return f"{letters}{digits[0]}/{digits[1:]}"
        day = int(self.rng.integers(1, 29))
        month = int(self.rng.integers(1, 13))
        return f"{int(self.rng.integers(1990, 2030))}-{month:02d}-{day:02d}"

    def item(self) -> str:
        """A word of running text: mostly a word, at times a name, a number or a code."""
        chance = self.rng.random()
        if chance < 0.05:
            return self.number()
        if chance < 0.08:
            return self.code()
        word = self.word()
        if chance < 0.16:
            return word.capitalize()
        if chance < 0.17:
            return word.upper()
        return word

    def words(self, count: int) -> list[str]:
        """``count`` words of running text without marks between them."""
        return [self.item() for _ in range(count)]

    def sentence(self) -> list[str]:
        """The words of a sentence, with its marks."""
        words = self.words(int(self.rng.integers(3, 13)))
        words[0] = words[0][0].upper() + words[0][1:]
        for index in range(1, len(words) - 1):
            chance = self.rng.random()
            if chance < 0.08:
                words[index] += ","
            elif chance < 0.09:
                words[index] = f"({words[index]})"
            elif chance < 0.10:
                words[index] = f'"{words[index]}"'
            elif chance < 0.11:
                words[index] += ";"
        words[-1] += self._choose([".", ".", ".", ".", "?", "!", ":"])
        return words

    def title(self) -> list[str]:
        """The words of a heading."""
        words = self.words(int(self.rng.integers(1, 6)))
        words[0] = words[0][0].upper() + words[0][1:]
        return words

    def _choose(self, options: list[str]) -> str:
        return options[int(self.rng.integers(0, len(options)))]
