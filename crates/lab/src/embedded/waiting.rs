//! Time that clients have waited in vain, counted only while every loop of the run goes on.
//!
//! A loop that executes something long, such as an audit of some millions of rows, answers no client meanwhile; on a busy machine
//! that takes longer than a client would wait for a node that has lost a request. So time counts in steps, and a step
//! counts when all loops have turned since the one before: what is still computed is not given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_model::Micros;

/// No step counts as more, however late the loop comes to take it.
const STEP_MAX: Micros = Micros::from_millis(100);

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// Counts the turns of each loop of a run.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<[Counter]>);

impl Turns {
    /// Counters of so many loops.
    pub fn of(loops: usize) -> Turns {
        Turns((0..loops).map(|_| Counter::default()).collect())
    }

    /// Notes a turn of a loop; a number that no loop has is ignored.
    pub fn turn(&self, number: usize) {
        if let Some(counter) = self.0.get(number) {
            counter.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn now(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|counter| counter.0.load(Ordering::Relaxed))
    }
}

/// The time that the clients of one loop have waited since an answer.
#[derive(Debug)]
pub(super) struct Waiting {
    turns: Turns,
    /// The turns of all loops at the last step that counted.
    seen: Vec<u64>,
    stepped_at: Micros,
    waited: Micros,
}

impl Waiting {
    pub fn new(turns: Turns) -> Waiting {
        Waiting { seen: turns.now().collect(), turns, stepped_at: Micros(0), waited: Micros(0) }
    }

    /// Begins anew: there was an answer, or nothing to wait for.
    pub fn reset(&mut self, now: Micros) {
        (self.stepped_at, self.waited) = (now, Micros(0));
    }

    /// Returns the time waited by now.
    pub fn waited(&mut self, now: Micros) -> Micros {
        if self.seen.iter().zip(self.turns.now()).all(|(seen, turned)| *seen != turned) {
            self.seen.iter_mut().zip(self.turns.now()).for_each(|(seen, turned)| *seen = turned);
            self.waited.0 += now.since(self.stepped_at).min(STEP_MAX).0;
            self.stepped_at = now;
        }
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns two loops every 50 ms, and returns when the first has waited for a second in vain.
    fn given_up_at(waiting: &mut Waiting, turns: &Turns, is_held: impl Fn(u64) -> [bool; 2]) -> u64 {
        for at in (0..).step_by(50) {
            let held = is_held(at);
            (0..2).filter(|number| !held[*number]).for_each(|number| turns.turn(number));
            if !held[0] && waiting.waited(Micros::from_millis(at)) > Micros::from_millis(1000) {
                return at;
            }
        }
        0
    }

    #[test]
    fn time_counts_while_all_loops_turn() {
        let turns = Turns::of(2);
        let mut waiting = Waiting::new(turns.clone());
        waiting.reset(Micros(0));
        assert_eq!(given_up_at(&mut waiting, &turns, |_| [false, false]), 1050);
        // Another loop is held from 500 ms to 60 s: its time counts as one step.
        waiting.reset(Micros(0));
        let held = |at: u64| (500..60_000).contains(&at);
        assert_eq!(given_up_at(&mut waiting, &turns, |at| [false, held(at)]), 60_500);
        // So does the time in which the own loop is.
        waiting.reset(Micros(0));
        assert_eq!(given_up_at(&mut waiting, &turns, |at| [held(at), false]), 60_500);
        // An answer begins it anew.
        waiting.reset(Micros::from_millis(60_500));
        turns.turn(0);
        turns.turn(1);
        assert_eq!(waiting.waited(Micros::from_millis(60_550)), Micros::from_millis(50));
    }
}
