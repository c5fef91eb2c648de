//! The steps by which slots go to another partition: what is asked for next, by the answers so far.
//!
//! `ordain cluster move` takes them over a connection, the simulator in its clusters.

use std::ops::RangeInclusive;

use ordain_model::Position;
use ordain_model::system::CopyPart;

/// How often a slot is copied from its beginning, if copies are given up; then it moves all the same.
const COPIES: usize = 3;
/// How often what has changed is copied again after the last part.
const AGAIN: usize = 2;

/// A step: it is asked for until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part of a slot is copied, from a position on; the answer is the position of the next part, or below 0 after the last.
    Copy { slot: usize, from: Position },
    /// Slots move, the last one included.
    Move { first: usize, last: usize },
}

/// The way of slots to another partition.
#[derive(Clone, Debug)]
pub struct Relocation {
    slots: RangeInclusive<usize>,
    /// How many go at a time: several are not copied before.
    at_a_time: usize,
    /// The copies of the slot at the front that were given up; none: it moves next.
    copying: Option<Copying>,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    from: Position,
    /// How often the end of the slot was reached.
    again: usize,
    given_up: usize,
}

impl Relocation {
    /// Slots that are to go, so many at a time, at least one.
    pub fn new(slots: RangeInclusive<usize>, at_a_time: usize) -> Relocation {
        let mut relocation = Relocation { slots, at_a_time: at_a_time.max(1), copying: None };
        relocation.begin_slot();
        relocation
    }

    fn first(&self) -> usize {
        *self.slots.start()
    }

    fn last(&self) -> usize {
        (self.first() + self.at_a_time - 1).min(*self.slots.end())
    }

    fn begin_slot(&mut self) {
        let is_alone = !self.slots.is_empty() && self.first() == self.last();
        let from = Position::of_slot(self.first().min(ordain_model::key::SLOTS - 1));
        self.copying = is_alone.then_some(Copying { from, again: 0, given_up: 0 });
    }

    /// The next step; none: all have moved.
    pub fn next(&self) -> Option<Step> {
        if self.slots.is_empty() {
            return None;
        }
        Some(match self.copying {
            Some(Copying { from, .. }) => Step::Copy { slot: self.first(), from },
            None => Step::Move { first: self.first(), last: self.last() },
        })
    }

    /// The step was done. `next` is the answer to a copy; `is_first`: it came when it was asked for the first time.
    pub fn done(&mut self, next: i64, is_first: bool) {
        let slot = self.first();
        let (begin, end) = (Position::of_slot(slot.min(ordain_model::key::SLOTS - 1)), CopyPart::last(slot));
        let Some(copying) = &mut self.copying else {
            let last = self.last();
            self.slots = last + 1..=*self.slots.end();
            return self.begin_slot();
        };
        if !is_first && copying.from != end {
            // A part that may have been copied is not copied again: the copies are given up.
            let given_up = copying.given_up + 1;
            self.copying = (given_up < COPIES).then_some(Copying { from: begin, again: 0, given_up });
            return;
        }
        if next < 0 && copying.from == begin {
            // A slot of one part: what changes until it moves is no more than a part either.
            self.copying = None;
            return;
        }
        // After the last part: what has changed meanwhile.
        copying.again += usize::from(next < 0);
        copying.from = if next < 0 { end } else { Position(next as u64) };
        if copying.again > AGAIN {
            self.copying = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(mut relocation: Relocation, answers: &[(i64, bool)]) -> Vec<Step> {
        let mut answers = answers.iter();
        let mut steps = Vec::new();
        while let Some(step) = relocation.next() {
            steps.push(step);
            let moved = (0, true);
            let (next, is_first) = if matches!(step, Step::Copy { .. }) {
                answers.next().unwrap_or(&(-1, true))
            } else {
                &moved
            };
            relocation.done(*next, *is_first);
        }
        steps
    }

    #[test]
    fn a_slot_is_copied_and_what_has_changed_and_then_it_moves() {
        let (begin, end) = (Position::of_slot(7), CopyPart::last(7));
        let copy = |from| Step::Copy { slot: 7, from };
        let moves = Step::Move { first: 7, last: 7 };
        assert_eq!(steps(Relocation::new(7..=7, 1), &[]), [copy(begin), moves], "of one part");
        let middle = Position(begin.0 + 5);
        let answers = [(middle.0 as i64, true), (-1, true), (-1, true), (-1, true)];
        let all = [copy(begin), copy(middle), copy(end), copy(end), moves];
        assert_eq!(steps(Relocation::new(7..=7, 1), &answers), all);
        // An answer that did not come at once: a part may have been copied twice.
        let answers = [(middle.0 as i64, true), (-1, false), (-1, true)];
        assert_eq!(
            steps(Relocation::new(7..=7, 1), &answers),
            [copy(begin), copy(middle), copy(begin), moves]
        );
        let never = [(middle.0 as i64, false); 3];
        assert_eq!(steps(Relocation::new(7..=7, 1), &never), [copy(begin), copy(begin), copy(begin), moves]);
    }

    #[test]
    fn several_move_without_copies() {
        let moved = |first, last| Step::Move { first, last };
        assert_eq!(
            steps(Relocation::new(5..=11, 3), &[]),
            [
                moved(5, 7),
                moved(8, 10),
                {
                    // The last one is alone, and so it is copied.
                    Step::Copy { slot: 11, from: Position::of_slot(11) }
                },
                moved(11, 11)
            ]
        );
        let last = steps(Relocation::new(1023..=1023, 1), &[]);
        assert_eq!(last[1], moved(1023, 1023));
    }
}
