"""What is said about a scene: a function of what can be seen in it, so that a right answer is one answer.

Which wording is used is decided by visible things too (the background's brightness, each thing's size): captions
vary, and yet nothing in them is left to chance.
"""

from draftlens.train.world.scene import Scene, Thing

NUMBERS = ("nothing", "one", "two", "three", "four")
DARK = ("black", "navy")

_DOES = {
    "stay": "stays where it is",
    "left": "moves to the left",
    "right": "moves to the right",
    "up": "moves upwards",
    "down": "moves downwards",
    "grow": "grows bigger and bigger",
    "shrink": "shrinks more and more",
    "enter": "enters from the {side} side",
    "leave": "leaves through the {side} side",
}


def does(thing: Thing) -> str:
    """What the thing does, as a verb phrase."""
    return _DOES[thing.motion].format(side=thing.side)


def look(thing: Thing) -> str:
    """The thing with its article: "a red circle", "an orange ring"."""
    return f"{'an' if thing.colour == 'orange' else 'a'} {thing.colour} {thing.shape}"


def staying(scene: Scene) -> int:
    """How many things are still in view at the end."""
    return sum(thing.motion != "leave" for thing in scene.things)


def caption(scene: Scene) -> str:
    """The one right answer to "Describe the video."."""
    return " ".join([_opening(scene), *(_sentence(thing) for thing in scene.things), _closing(scene)])


def still_caption(scene: Scene) -> str:
    """The one right answer to "Describe the image."."""
    middle = (_still_sentence(thing) for thing in scene.things)
    return " ".join([_opening(scene), *middle, "Nothing else can be seen in it."])


def _opening(scene: Scene) -> str:
    count = NUMBERS[len(scene.things)]
    if scene.background in DARK:
        return f"On a {scene.background} background there are {count} shapes."
    return f"{count.capitalize()} shapes are shown against a {scene.background} background."


def _sentence(thing: Thing) -> str:
    if thing.changes_size:
        return f"{look(thing).capitalize()} at the {thing.place} of the picture {does(thing)}."
    if thing.size == "large":
        return f"At the {thing.place} of the picture, a large {thing.colour} {thing.shape} {does(thing)}."
    return f"There is a small {thing.colour} {thing.shape} at the {thing.place}, and it {does(thing)}."


def _still_sentence(thing: Thing) -> str:
    if thing.size == "large":
        return f"At the {thing.place} of the picture, there is a large {thing.colour} {thing.shape}."
    return f"There is a small {thing.colour} {thing.shape} at the {thing.place}."


def _closing(scene: Scene) -> str:
    left = staying(scene)
    if left == len(scene.things):
        return "All of them can be seen at the end."
    verb = "shape is" if left == 1 else "is" if left == 0 else "shapes are"
    return f"At the end {NUMBERS[left]} {verb} left."
