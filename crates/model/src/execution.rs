//! Whether transactions are executed before it is known which of them abort.

use crate::named::named;

/// How what depends on verdicts of other shards is executed (the Q-Store paper, section 4.2; qstore.md, sections 4.7 and
/// 4.8). The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// Nobody waits for a verdict; what turns out wrong is undone, with all that depends on it, and executed again.
    Speculative,
    /// What is written is seen when all verdicts are known.
    #[default]
    Conservative,
    /// Batch by batch, whichever of the two was found to be faster.
    Auto,
}

impl Execution {
    /// All of them, by name.
    pub const ALL: [(&'static str, Execution); 3] = [
        ("speculative", Execution::Speculative),
        ("conservative", Execution::Conservative),
        ("auto", Execution::Auto),
    ];
}

named!(Execution, UnknownExecution, "no way to execute transactions: speculative, conservative or auto");

/// What a batch says of how its epoch is to be executed (qstore.md, section 4.8: the choice stands in the log, so that every
/// replica makes the same). One in which nobody would have to wait for a verdict says nothing. Of an epoch the first batch that
/// says something decides, for all that follows in it: what came before is executed alike in either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// What is written is seen when all verdicts are known.
    Wait,
    /// It may be executed before it is known what aborts (the Q-Store paper, section 4.2; qstore.md, section 4.7). Then
    /// this becomes of what has used something of it.
    Speculate(Cascade),
}

/// What becomes of a transaction that was executed on what another one had written which then aborted (the Q-Store paper,
/// section 4.2; qstore.md, section 4.7, step 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cascade {
    /// It is executed again: the results are those of one after the other.
    #[default]
    Repair,
    /// It aborts too, as the paper has it, and its client asks again.
    Abort,
}

impl Cascade {
    /// All of them, by name.
    pub const ALL: [(&'static str, Cascade); 2] = [("repair", Cascade::Repair), ("abort", Cascade::Abort)];
}

named!(Cascade, UnknownCascade, "nothing that can become of what used what was undone: repair or abort");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, mode) in Execution::ALL {
            assert_eq!((name.parse(), mode.to_string()), (Ok(mode), name.to_owned()));
        }
        assert!("optimistic".parse::<Execution>().is_err());
        for (name, way) in Cascade::ALL {
            assert_eq!((name.parse(), way.to_string()), (Ok(way), name.to_owned()));
        }
        assert!("restart".parse::<Cascade>().is_err());
    }
}
