//! Workloads: transactions as procedures with native fragments, and the seeded streams of them that clients
//! send.
//!
//! A workload is three things: procedures that load, run and audit, to be [registered](register) in a node; a
//! [`Source`] for each population of clients, which makes up one transaction after the other; and what must
//! hold of the answers and of the data afterwards. It knows procedures and plans, and no engine, driver or
//! protocol, so that every engine is given the very same transactions.
//!
//! The arguments of a procedure are the keys of its records, in the order of its fragments, and then one
//! packed argument with everything else: so that the front door can call it as `FCALL name numkeys key… arg`. Those of the
//! bank, which people call by hand, take words instead.
//!
//! [`random`], [`choice`] and [`pool`] are the generators: everything that is drawn is a function of a seed.
//! [`audit`] is how a workload looks at all of its records at once.

pub mod append;
pub mod audit;
pub mod bank;
pub mod choice;
pub mod micro;
mod packed;
pub mod pool;
pub mod random;
mod reads;
#[cfg(test)]
mod testing;
pub mod tpcc;
pub mod words;
pub mod ycsb;

use std::fmt;

use ordain_model::{ArgsBuilder, OutcomeStatus, ProcedureId, Registry};

/// Adds the procedures of all workloads, which have the numbers 1000 to 1099.
pub fn register(registry: &mut Registry) {
    ycsb::register(registry);
    bank::register(registry);
    tpcc::register(registry);
    micro::register(registry);
    append::register(registry);
}

/// A workload with its parameters: who loads, who runs, and what must hold afterwards.
pub trait Workload: fmt::Debug + Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The kinds of its transactions, by name; [`Made::kind`] counts from 0 here.
    fn kinds(&self) -> &'static [&'static str];

    /// Its knobs, with the papers' names, as a report tells them.
    fn params(&self) -> Vec<(&'static str, Param)>;

    /// How many record accesses a committed transaction of each kind has, on average.
    fn accesses(&self) -> Vec<f64>;

    /// Population `number` of `populations`, which share the loading between them.
    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source>;

    /// Procedures without arguments that are called, one after the other, when nothing is under way any more.
    fn audits(&self) -> Vec<ProcedureId>;

    /// What must hold.
    fn check(&self, seen: &Seen) -> Vec<Finding>;
}

/// A population of clients: makes up transactions, first those that load the data, then those that are
/// measured.
///
/// Making one up and writing it down are two steps, so that the arguments are written once, where they will
/// be logged.
pub trait Source: Send {
    /// Makes up the next transaction of loading; `None` when this population has loaded its share.
    fn load(&mut self) -> Option<ProcedureId>;

    /// Makes up the next transaction of the run.
    fn next(&mut self) -> Made;

    /// Writes the arguments of the transaction made up last.
    fn write_args(&self, args: &mut ArgsBuilder<'_>);

    /// Hears how a transaction of the run ended, in the order of the answers; `reply` is an encoded
    /// [`Datum`](ordain_model::Datum).
    fn heard(&mut self, kind: u8, status: OutcomeStatus, reply: &[u8]) {
        let _ = (kind, status, reply);
    }

    /// What it has learnt from the answers, in an encoding of the workload's own, for [`Workload::check`].
    fn testimony(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// A transaction that was made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// What to call.
    pub procedure: ProcedureId,
    /// Which of [`Workload::kinds`] it is.
    pub kind: u8,
}

/// The value of a knob.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// A count.
    Int(u64),
    /// A share, or an exponent.
    Real(f64),
    /// A name.
    Text(String),
}

/// How transactions of one kind ended, loading apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// They took effect.
    pub committed: u64,
    /// They took no effect, by their own logic.
    pub aborted: u64,
    /// They took no effect, because their reconnaissance was out of date too often.
    pub restarted_out: u64,
    /// They were turned away, because the pipeline or the disk was full.
    pub turned_away: u64,
    /// Whether they took effect nobody can tell: the node that would have said so is gone.
    pub unknown: u64,
    /// How often they were started over, because their reconnaissance was out of date; 0 where a driver cannot know.
    pub restarts: u64,
}

impl Counts {
    /// Counts one.
    pub fn count(&mut self, status: OutcomeStatus) {
        use ordain_model::Abort;
        match status {
            OutcomeStatus::Committed => self.committed += 1,
            OutcomeStatus::Aborted(Abort::Restart | Abort::Conflict | Abort::Cascade) => {
                self.restarted_out += 1
            }
            OutcomeStatus::Aborted(_) => self.aborted += 1,
            OutcomeStatus::Busy
            | OutcomeStatus::Refused
            | OutcomeStatus::Superseded
            | OutcomeStatus::TooOld
            | OutcomeStatus::Moved => self.turned_away += 1,
            OutcomeStatus::Unknown => self.unknown += 1,
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.restarted_out += other.restarted_out;
        self.turned_away += other.turned_away;
        self.unknown += other.unknown;
        self.restarts += other.restarts;
    }
}

/// What a run has left behind: what [`Workload::check`] judges.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How the transactions ended, from the end of loading to the end of the run, by kind.
    pub by_kind: Vec<Counts>,
    /// What [`Workload::audits`] answered, in order; empty for one that was not answered.
    pub audits: Vec<Vec<u8>>,
    /// What each population has learnt.
    pub testimonies: Vec<Vec<u8>>,
}

impl Seen {
    /// All kinds together.
    pub fn total(&self) -> Counts {
        self.by_kind.iter().fold(Counts::default(), |mut sum, counts| {
            sum += *counts;
            sum
        })
    }

    /// Whether nothing was aborted: for workloads whose transactions have no reason to.
    pub fn no_aborts(&self) -> Finding {
        let Counts { aborted, restarted_out, .. } = self.total();
        Finding::new("no_aborts", aborted + restarted_out == 0, || {
            format!(
                "{aborted} transactions aborted and {restarted_out} restarted in vain; none has a reason to"
            )
        })
    }
}

/// Whether something that must hold does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name in the report.
    pub name: &'static str,
    /// Nothing if it holds; otherwise what is wrong, with the figures.
    pub wrong: Option<String>,
}

impl Finding {
    /// A finding; `wrong` is only asked for if it does not hold.
    pub fn new(name: &'static str, holds: bool, wrong: impl FnOnce() -> String) -> Finding {
        Finding { name, wrong: (!holds).then(wrong) }
    }
}
