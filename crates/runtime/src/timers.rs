//! The timers of one loop.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::Micros;
use ordain_role::TimerId;

/// Which timer of whom: the place of a role on the loop, and the role's own name for the timer.
pub(crate) type TimerKey = (usize, TimerId);

/// The running number of a setting, by which timers of one time fire in the order in which they were set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetNo(u64);

/// Timers by time. Setting a timer again replaces it.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// One entry for each of `set`.
    due: BTreeSet<(Micros, SetNo, TimerKey)>,
    set: BTreeMap<TimerKey, (Micros, SetNo)>,
    next: SetNo,
}

impl Timers {
    /// Sets a timer to fire at a time, or never.
    pub(crate) fn set(&mut self, key: TimerKey, at: Option<Micros>) {
        let old = match at {
            Some(at) => {
                let no = self.next;
                self.next.0 += 1;
                self.due.insert((at, no, key));
                self.set.insert(key, (at, no))
            }
            None => self.set.remove(&key),
        };
        if let Some((at, no)) = old {
            self.due.remove(&(at, no, key));
        }
    }

    /// The time at which the next timer fires.
    pub(crate) fn next_due(&self) -> Option<Micros> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// The number that the next setting will get.
    pub(crate) fn next_no(&self) -> SetNo {
        self.next
    }

    /// Takes the next timer that is due at `now` and was set before the setting `before`. The bound keeps a
    /// timer that sets itself anew without delay from holding the loop for ever.
    pub(crate) fn pop(&mut self, now: Micros, before: SetNo) -> Option<TimerKey> {
        let &(at, no, key) = self.due.first()?;
        if at > now || no >= before {
            return None;
        }
        self.due.pop_first();
        self.set.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: TimerKey = (0, TimerId(1));
    const B: TimerKey = (1, TimerId(1));

    #[test]
    fn a_timer_set_while_others_fire_waits_for_the_next_pass() {
        let mut timers = Timers::default();
        timers.set(A, Some(Micros(10)));
        let pass = timers.next_no();
        assert_eq!(timers.pop(Micros(10), pass), Some(A));
        timers.set(A, Some(Micros(10)));
        assert_eq!(timers.pop(Micros(10), pass), None);
        assert_eq!(timers.pop(Micros(10), timers.next_no()), Some(A));
        assert_eq!(timers.next_due(), None);
    }

    #[test]
    fn timers_of_one_time_fire_in_the_order_they_were_set() {
        let mut timers = Timers::default();
        timers.set(B, Some(Micros(5)));
        timers.set(A, Some(Micros(5)));
        let pass = timers.next_no();
        assert_eq!(timers.pop(Micros(5), pass), Some(B));
        assert_eq!(timers.pop(Micros(5), pass), Some(A));
    }

    proptest! {
        /// Against a list that is searched: whatever is set, replaced and cancelled, the same timers fire in
        /// the same order.
        #[test]
        fn fires_what_a_list_would_fire(
            steps in prop::collection::vec((0usize..3, 0u32..3, prop::option::of(0u64..20), any::<bool>()), 0..60)
        ) {
            let mut timers = Timers::default();
            let mut list: Vec<(u64, usize, TimerKey)> = Vec::new();
            for (i, (place, id, at, fire)) in steps.into_iter().enumerate() {
                let key = (place, TimerId(id));
                timers.set(key, at.map(Micros));
                list.retain(|(.., k)| *k != key);
                list.extend(at.map(|at| (at, i, key)));
                prop_assert_eq!(timers.next_due().map(|at| at.0), list.iter().map(|(at, ..)| *at).min());
                if fire {
                    let now = 10;
                    list.sort();
                    let expected: Vec<TimerKey> =
                        list.extract_if(.., |(at, ..)| *at <= now).map(|(.., key)| key).collect();
                    let pass = timers.next_no();
                    let fired: Vec<TimerKey> =
                        std::iter::from_fn(|| timers.pop(Micros(now), pass)).collect();
                    prop_assert_eq!(fired, expected);
                }
            }
        }
    }
}
