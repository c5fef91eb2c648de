//! The options of the family's engines, each written down once. An engine says which of them it has.

use ordain_model::{Backoff, Micros, OptionInfo, OptionKind, OptionValue};

/// The pause after the first refused attempt with [`Backoff::Exponential`], about. Each further pause is twice as long.
const FIRST: Micros = Micros(50);
/// The longest pause with [`Backoff::Exponential`].
const LONGEST: Micros = Micros::from_millis(5);
/// Pauses after attempts of one number have so many different lengths, so that two transactions that refuse each other part.
const SPREAD: u64 = 7;
/// Deneva's `ABORT_PENALTY`, nanoseconds.
const DENEVA_PENALTY: u64 = 10_000_000;
/// Deneva's `ABORT_PENALTY_MAX`, nanoseconds.
const DENEVA_PENALTY_MAX: u64 = 500_000_000;

/// The pause of a transaction between its attempts.
pub static BACKOFF: OptionInfo = OptionInfo {
    name: "backoff",
    value_name: "HOW",
    doc: "The pause between a refused attempt at a transaction and the next one. `exp`: from 50 us, twice as long \
          after each attempt, to 5 ms. `none`: no pause. `deneva`: 500 ms after each, as in the public code with \
          which papers measure; a transaction has about ten attempts then before it is answered BUSY",
    kind: OptionKind::Name { names: &Backoff::NAMES, wrong: Backoff::WRONG },
    default: OptionValue::Name("exp"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The pause after an attempt of a transaction, by their numbers; at least 1 us, so that a turn of the coordinator ends.
/// Attempts are numbered from 1.
pub fn pause(backoff: Backoff, transaction: u64, attempt: u32) -> Micros {
    match backoff {
        Backoff::Exponential => {
            let longest = (FIRST.0 << attempt.saturating_sub(1).min(16)).min(LONGEST.0);
            Micros((longest * (1 + (transaction + u64::from(attempt)) % SPREAD) / SPREAD).max(1))
        }
        Backoff::None => Micros(1),
        // `max(penalty * 2^aborts, penalty_max)`: `^` is C's exclusive or, and what was to be the longest pause is the shortest.
        Backoff::Deneva => {
            Micros(((DENEVA_PENALTY * 2) ^ u64::from(attempt)).max(DENEVA_PENALTY_MAX) / 1_000)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_differ() {
        let pauses = |attempt| (1..=SPREAD).map(move |number| pause(Backoff::Exponential, number, attempt));
        for attempt in [1, 2, 5, 8, 64, u32::MAX - 1] {
            let longest = (FIRST.0 << (attempt - 1).min(16)).min(LONGEST.0);
            assert_eq!(pauses(attempt).max(), Some(Micros(longest)), "{attempt}");
            assert_eq!(pauses(attempt).collect::<BTreeSet<_>>().len() as u64, SPREAD, "{attempt}");
            assert!(pauses(attempt).all(|pause| pause > Micros(0)));
        }
    }

    /// Sheet baselines.md, B-2: whatever the number of the attempt, it is half a second.
    #[test]
    fn denevas_pause_is_half_a_second_and_no_pause_ends_the_turn() {
        for attempt in [1, 2, 10, 1_000] {
            let pauses = [1, 9].map(|number| pause(Backoff::Deneva, number, attempt));
            assert_eq!(pauses, [Micros::from_millis(500); 2], "{attempt}");
            assert_eq!(pause(Backoff::None, 3, attempt), Micros(1));
        }
    }
}
