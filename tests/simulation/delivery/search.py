"""Every state of a small world, breadth first, so that what is found is told by a shortest story.

Owns the two questions. *Safety*: is a law broken in any state? *Liveness*: if faults stop, do all
targets get to the end, whatever the order of all that is left to happen? That is so if steps
without faults never lead back to a state (they come to an end), and where nothing must happen any
more all is done. What is left of earlier connections may come meanwhile, or never.
"""

from __future__ import annotations

from array import array

from simulation.delivery.small_world import Broken, Scope, SmallWorld, Step


class Search:
    """Of all states of a scope. `run` it once."""

    def __init__(self, scope: Scope) -> None:
        self.world = SmallWorld(scope)
        #: States that were met, and steps between them.
        self.states = 0
        self.steps = 0
        self.is_complete = False
        #: What is broken, and how it came to that; empty: nothing is.
        self.problem = ""
        self.story: list[Step] = []
        first = self.world.first()
        self._known = [first]
        self._numbers = {first: 0}
        self._parents = array("l", [-1])
        #: Where steps without faults lead, and which of them are of which state.
        self._ends = array("l")
        self._first_ends = array("l", [0])

    @property
    def queue_states(self) -> set[str]:
        """States of queues of targets that were met."""
        return self.world.players.queue_states

    def run(self) -> Search:
        place = 0
        while place < len(self._known) and not self.problem:
            try:
                must_happen = self._follow(place)
            except (Broken, AssertionError) as error:
                return self._found(place, str(error))
            if not must_happen and not self.world.is_done(self._known[place]):
                return self._found(place, "nothing happens any more, and targets are behind")
            self._first_ends.append(len(self._ends))
            place += 1
        self.is_complete = True
        self.states = len(self._known)
        circle = self._circle()
        return self if circle is None else self._found(circle, "this comes again and again")

    def _follow(self, place: int) -> bool:
        """Whatever can happen next; whether anything must."""
        must_happen = False
        numbers, known = self._numbers, self._known
        for kind, _, following in self.world.steps(known[place]):
            self.steps += 1
            number = numbers.get(following)
            if number is None:
                number = numbers[following] = len(known)
                known.append(following)
                self._parents.append(place)
            if number != place and kind != "fault":
                must_happen |= kind == "own"
                self._ends.append(number)
        return must_happen

    def _found(self, place: int, problem: str) -> Search:
        self.states = len(self._known)
        self.problem = problem
        while (parent := self._parents[place]) >= 0:
            state, following = self._known[parent], self._known[place]
            step = next(step for _, step, to in self.world.steps(state) if to == following)
            self.story.insert(0, step)
            place = parent
        return self

    def _circle(self) -> int | None:
        """A state to which steps without faults lead back; None: there is none."""
        count = len(self._known)
        waiting = array("l", bytes(8 * count))
        for end in self._ends:
            waiting[end] += 1
        ready = [place for place in range(count) if not waiting[place]]
        while ready:
            place = ready.pop()
            for end in self._ends[self._first_ends[place] : self._first_ends[place + 1]]:
                waiting[end] -= 1
                if not waiting[end]:
                    ready.append(end)
        return next((place for place in range(count) if waiting[place]), None)
