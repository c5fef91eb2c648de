//! The options of the family's engines, each written down once. An engine says which of them it has.

use ordain_model::{
    Backoff, GcIds, Install, Micros, Need, OptionInfo, OptionKind, OptionValue, Options, PartitionId,
    Prewrite, RoLocal, RoMode, StampSource,
};

use crate::ids::AttemptId;

/// The pause after the first refused attempt with [`Backoff::Exponential`], about. Each further pause is twice as long.
const FIRST: Micros = Micros(50);
/// The longest pause with [`Backoff::Exponential`].
const LONGEST: Micros = Micros::from_millis(5);
/// Pauses after attempts of one number have so many different lengths. Which one it is the attempt draws, so that two transactions that
/// refuse each other part, also if they were taken and numbered alike at two homes.
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

/// Thomas's rule.
pub static THOMAS: OptionInfo = OptionInfo {
    name: "twr",
    value_name: "BOOL",
    doc: "Thomas's rule: a write that looks at nothing is let in below a later write of its record, and is dropped once \
          both have committed. Without it such a write is refused",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(false),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The source of stamps, of engines whose attempts have stamps of their own.
pub static TS_SOURCE: OptionInfo = OptionInfo {
    name: "ts-source",
    value_name: "HOW",
    doc: "The source of the stamps by which attempts are ordered. `hlc`: the clock of the home, which is never behind a \
          stamp that the home has heard of. `clock`: that clock alone, as in the public code with which papers measure; a \
          home that is behind is refused until its clock has passed, and only the order of stamps is kept, not that of a \
          connection. `counter`: one counter for all homes, at the leader of partition 0; strictly serializable, and each \
          attempt waits for that leader and its quorum",
    kind: OptionKind::Name { names: &StampSource::NAMES, wrong: StampSource::WRONG },
    default: OptionValue::Name("hlc"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: true,
    changes_at_run_time: false,
    needs: None,
};

/// The injected skew of the clocks that give stamps.
pub static SKEW_US: OptionInfo = OptionInfo {
    name: "skew-us",
    value_name: "US",
    doc: "For tests and studies: how far the clock that gives stamps is ahead on partitions with odd numbers. Nothing \
          else goes by that clock",
    kind: OptionKind::Integer { unit: "microseconds", min: 0, max: 100_000 },
    default: OptionValue::Integer(0),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The moment from which on others see a write, with dynamic timestamp ranges.
pub static PREWRITE: OptionInfo = OptionInfo {
    name: "prewrite",
    value_name: "WHEN",
    doc: "When a write takes its soft lock. `deferred`: when its transaction is validated. `access`: with the access, as in \
          the public code with which papers measure, so that a transaction which is validated first moves it behind itself",
    kind: OptionKind::Name { names: &Prewrite::NAMES, wrong: Prewrite::WRONG },
    default: OptionValue::Name("deferred"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The injected delay of announcements between homes.
pub static PROPAGATE_DELAY_US: OptionInfo = OptionInfo {
    name: "propagate-delay-us",
    value_name: "US",
    doc: "For tests and studies: homes tell others of what they have decided without them so late at least. Without it they do \
          within a millisecond",
    kind: OptionKind::Integer { unit: "microseconds", min: 0, max: 1_000_000 },
    default: OptionValue::Integer(0),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The order of installations.
pub static INSTALL: OptionInfo = OptionInfo {
    name: "install",
    value_name: "WHEN",
    doc: "When a partition installs a transaction whose home is another one. `decoupled`: with its outcome. `paper`: once all \
          earlier decisions of that home are known; until then its records stay locked, so late announcements refuse others",
    kind: OptionKind::Name { names: &Install::NAMES, wrong: Install::WRONG },
    default: OptionValue::Name("decoupled"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: true,
    changes_at_run_time: false,
    needs: None,
};

/// When what is decided takes effect for others in the region.
pub static EARLY_APPLY: OptionInfo = OptionInfo {
    name: "early-apply",
    value_name: "BOOL",
    doc: "Whether a transaction takes effect for others of its region when it is decided, before the region's storage nodes have it. \
          Clients and other regions are told of it afterwards in both cases",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(true),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The number of rounds in which regions validate a transaction of several.
pub static OCC_ROUNDS: OptionInfo = OptionInfo {
    name: "occ-rounds",
    value_name: "N",
    doc: "The number of rounds in which regions validate a transaction of several. `1`: each locks what is written there, validates \
          what was read and votes; what was read must not change until the outcome is known. `2`, as in the paper: all lock first, and \
          validate and vote once all have locked; what was read may change then, and a commit takes two round trips",
    kind: OptionKind::Integer { unit: "rounds", min: 1, max: 2 },
    default: OptionValue::Integer(1),
    is_flag: false,
    is_identity: false,
    is_of_cluster: true,
    changes_at_run_time: false,
    needs: None,
};

/// The promise to what only reads, of records of other regions.
pub static RO_MODE: OptionInfo = OptionInfo {
    name: "ro-mode",
    value_name: "MODE",
    doc: "How a transaction that only reads sees keys of other regions. `validated`: their regions confirm that all of it was the \
          newest at one moment. `stale`: as the region's server knows them, for each region one moment of the past",
    kind: OptionKind::Name { names: &RoMode::NAMES, wrong: RoMode::WRONG },
    default: OptionValue::Name("validated"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The promise to what only reads, of records of its own region.
pub static RO_LOCAL: OptionInfo = OptionInfo {
    name: "ro-local",
    value_name: "MODE",
    doc: "How a transaction that only reads keys of its own region meets one of several regions that is in doubt. `strict`: it waits for the \
          outcome. `resolved`: it sees the region as it was before anything was in doubt, which is of the past; the order is serializable, and a \
          client may not see what it has just written",
    kind: OptionKind::Name { names: &RoLocal::NAMES, wrong: RoLocal::WRONG },
    default: OptionValue::Name("strict"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The losses after which the records of a transaction of several regions are reserved.
pub static M_RETRIES: OptionInfo = OptionInfo {
    name: "m-retries",
    value_name: "N",
    doc: "A transaction of several regions goes first once other regions have refused it so often: others that would write its \
          records wait until it is over. 0: never, so that who writes in one region may win each time",
    kind: OptionKind::Integer { unit: "attempts", min: 0, max: 1_000 },
    default: OptionValue::Integer(4),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The view of what the own region has committed in others.
pub static OVERLAY: OptionInfo = OptionInfo {
    name: "overlay",
    value_name: "BOOL",
    doc: "Whether a region's server shows what its own transactions have committed in another region before it has that region's log \
          up to there. Without it a client that reads what it has just written elsewhere waits, refused and tried again, until the log \
          has come",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(false),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: Some(Need {
        value: "true",
        other: "ro-mode",
        values: &["validated"],
        why: "what only reads is shown one moment of the other region's log",
    }),
};

/// The word about transactions that only read and are over.
pub static GC_IDS: OptionInfo = OptionInfo {
    name: "gc-ids",
    value_name: "HOW",
    doc: "How homes tell others that transactions which only read are over, so that sets forget their names. `watermark`: by \
          the lowest number of those under way, along with decisions, or a tenth of a second late. `remove`: by the numbers of \
          all under way, within a millisecond, as the paper does; a transaction that lasts holds back no others then",
    kind: OptionKind::Name { names: &GcIds::NAMES, wrong: GcIds::WRONG },
    default: OptionValue::Name("watermark"),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The snapshot with which updates begin.
pub static FRESH_BEGIN: OptionInfo = OptionInfo {
    name: "fresh-begin",
    value_name: "BOOL",
    doc: "Attempts begin with every decision that any message has told their home of. Without it they begin with what the \
          home's log has heard of and what clients of the node have seen",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(false),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The most stamps that a validated attempt keeps.
pub static CAP: OptionInfo = OptionInfo {
    name: "cap",
    value_name: "N",
    doc: "How many stamps a validated transaction keeps to choose from. Others that write what it has read have to go behind \
          them; with few, partitions of one transaction may have none in common. 0: all that it has",
    kind: OptionKind::Integer { unit: "stamps", min: 0, max: 1_000_000_000 },
    default: OptionValue::Integer(1_000),
    is_flag: false,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// The advance of the clock that gives the stamps of a home.
pub fn skew_of(options: &Options, home: PartitionId) -> Micros {
    Micros(if home.0 % 2 == 1 { options.number(&SKEW_US) } else { 0 })
}

/// The pause after an attempt; at least 1 us, so that a turn of the coordinator ends.
pub fn pause(backoff: Backoff, who: AttemptId) -> Micros {
    let attempt = who.attempt;
    match backoff {
        Backoff::Exponential => {
            let longest = (FIRST.0 << attempt.saturating_sub(1).min(16)).min(LONGEST.0);
            Micros((longest * (1 + who.seed() % SPREAD) / SPREAD).max(1))
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

    use ordain_model::PartitionId;

    use super::*;
    use crate::ids::{Lead, Term, TransactionId};

    fn who(partition: u16, number: u64, attempt: u32) -> AttemptId {
        let home = Lead { partition: PartitionId(partition), term: Term(1) };
        AttemptId { transaction: TransactionId { home, number }, attempt }
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_differ() {
        let pauses = |attempt| (1..=100).map(move |n| pause(Backoff::Exponential, who(0, n, attempt)));
        for attempt in [1, 2, 5, 8, 64, u32::MAX - 1] {
            let longest = (FIRST.0 << (attempt - 1).min(16)).min(LONGEST.0);
            assert_eq!(pauses(attempt).max(), Some(Micros(longest)), "{attempt}");
            assert_eq!(pauses(attempt).collect::<BTreeSet<_>>().len() as u64, SPREAD, "{attempt}");
            assert!(pauses(attempt).all(|pause| pause > Micros(0)));
        }
    }

    /// Found by scenario 2: two transactions of equal number paused alike for ever.
    #[test]
    fn no_two_transactions_pause_alike_for_long() {
        let pauses = |partition, number| {
            (1..=12).map(move |attempt| pause(Backoff::Exponential, who(partition, number, attempt)))
        };
        let all: BTreeSet<Vec<Micros>> = (0..4)
            .flat_map(|partition| (1..=250).map(move |number| pauses(partition, number).collect()))
            .collect();
        assert_eq!(all.len(), 1_000);
    }

    /// Sheet baselines.md, B-2: whatever the number of the attempt, it is half a second.
    #[test]
    fn denevas_pause_is_half_a_second_and_no_pause_ends_the_turn() {
        for attempt in [1, 2, 10, 1_000] {
            let pauses = [1, 9].map(|number| pause(Backoff::Deneva, who(0, number, attempt)));
            assert_eq!(pauses, [Micros::from_millis(500); 2], "{attempt}");
            assert_eq!(pause(Backoff::None, who(0, 3, attempt)), Micros(1));
        }
    }
}
