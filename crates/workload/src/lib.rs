//! Workloads: transactions as procedures with native fragments, and the seeded streams of them that clients
//! send.
//!
//! A workload is three things: procedures that load, run and audit, to be [registered](register) in a node; a
//! [`Source`] for each population of clients, which makes up one transaction after the other; and what must
//! hold of the answers and of the data afterwards. It knows procedures and plans, and no engine, driver or
//! protocol, so that every engine is given the very same transactions.
//!
//! The arguments of a procedure are the keys of its records, in the order of its fragments, and then one
//! packed argument with everything else: so that a connection server can call it as `FCALL name numkeys key… arg`. Those of the
//! bank, which people call by hand, take words instead.
//!
//! [`choice`] and [`pool`] are the generators: everything that is drawn is a function of a seed.
//! [`audit`] reads all records of a workload at once; [`aggregate`] has what is counted apart and merged.

pub mod aggregate;
pub mod append;
pub mod audit;
pub mod bank;
pub mod choice;
pub mod micro;
mod packed;
mod parameters;
pub mod pool;
mod population;
mod reads;
#[cfg(test)]
mod testing;
pub mod tpcc;
pub mod words;
pub mod ycsb;

use std::collections::BTreeMap;
use std::fmt;

use ordain_model::{Abort, ArgsBuilder, OutcomeStatus, ProcedureId, Registry, system};

use aggregate::Aggregate;
pub use parameters::ParameterError;

/// Adds the procedures of all workloads, which have the numbers 1000 to 1099.
pub fn register(registry: &mut Registry) {
    ycsb::register(registry);
    bank::register(registry);
    tpcc::register(registry);
    micro::register(registry);
    append::register(registry);
}

/// A workload with its parameters: how it is loaded and run, and what must hold afterwards.
pub trait Workload: fmt::Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The names of the kinds of transactions; [`Made::kind`] counts from 0 here.
    fn kinds(&self) -> &'static [&'static str];

    /// The parameters, with the papers' names, as a report has them.
    fn params(&self) -> Vec<(&'static str, Param)>;

    /// The record accesses of a committed transaction of each kind, on average.
    fn accesses(&self) -> Vec<f64>;

    /// The source of population `number` of `populations`, which share the loading between them.
    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source>;

    /// The audit of the records: a procedure without arguments.
    fn audit(&self) -> ProcedureId;

    /// The procedures without arguments that are called, one after the other, when nothing is under way any more.
    fn audits(&self) -> Vec<ProcedureId> {
        vec![self.audit(), system::DIGEST]
    }

    /// True if each population audits the records that it has loaded ([`Source::audit`]), and there are no other audits: records
    /// are at home in regions, and nothing sees those of several.
    fn is_audited_at_home(&self) -> bool {
        false
    }

    /// Checks what must hold after a run.
    fn check(&self, results: &Results) -> Vec<Finding>;

    /// The classes of clients, each of which asks for transactions of its own kinds ([`Source::next_of`]): a class whose transactions
    /// take long holds up no other. None: every client asks for everything.
    ///
    /// Only a driver whose clients ask again when they are answered, and have one transaction under way, can keep them apart.
    fn classes(&self) -> Vec<Class> {
        Vec::new()
    }

    /// True if replies name their transactions ([`Source::name_of`]) and reads name the writes that they see, so that
    /// [`Workload::staleness`] can be told.
    fn names_writes(&self) -> bool {
        false
    }

    /// For how long, when what only reads was asked for, there had been an answer to a write that it does not see: the longest such
    /// time of each transaction whose times [count](Times::counts), 0 if it misses nothing. In the unit of the times, which are by the names of
    /// transactions.
    fn staleness(&self, results: &Results, times: &BTreeMap<u64, Times>) -> Vec<u64> {
        let _ = (results, times);
        Vec::new()
    }
}

/// A class of clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// The share of the clients that are of the class.
    pub clients: f64,
    /// The share of all transactions at which the class waits until others have asked for more; 1: it never waits.
    pub at_most: f64,
}

/// The times of a transaction, by a clock that all clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The client had not asked before.
    pub asked: u64,
    /// The client knew the answer no earlier.
    pub answered: u64,
    /// It was answered in the time that is measured.
    pub counts: bool,
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

    /// Makes up the next transaction of a class of [`Workload::classes`], by its place there.
    fn next_of(&mut self, class: usize) -> Made {
        let _ = class;
        self.next()
    }

    /// Makes up the next audit of the records that this population has loaded, once nothing is under way any more; `None` when all
    /// are made up, or others audit them.
    fn audit(&mut self) -> Option<ProcedureId> {
        None
    }

    /// Writes the arguments of the transaction made up last.
    fn write_args(&self, args: &mut ArgsBuilder<'_>);

    /// Takes note of how a transaction of the run ended, in the order of the answers; `reply` is an encoded
    /// [`Datum`](ordain_model::Datum).
    fn answered(&mut self, kind: u8, status: OutcomeStatus, reply: &[u8]) {
        let _ = (kind, status, reply);
    }

    /// The name of the transaction that a reply is of, if it has one.
    fn name_of(&self, reply: &[u8]) -> Option<u64> {
        let _ = reply;
        None
    }

    /// Sums the answers up, in an encoding of the workload's own, for [`Workload::check`].
    fn summary(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// A transaction that a [`Source`] made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The procedure to call.
    pub procedure: ProcedureId,
    /// The place of its kind in [`Workload::kinds`].
    pub kind: u8,
}

/// The value of a parameter in a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// A count.
    Int(u64),
    /// A share, or an exponent.
    Real(f64),
    /// A name.
    Text(String),
}

/// The ends of the transactions of one kind, loading apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that took effect.
    pub committed: u64,
    /// Transactions without effect, by their own logic.
    pub aborted: u64,
    /// Transactions without effect, because their reconnaissance was out of date too often.
    pub restarted_out: u64,
    /// Transactions that were rejected, because the pipeline or the disk was full.
    pub turned_away: u64,
    /// Transactions of unknown end: the node that would have answered is gone.
    pub unknown: u64,
    /// Restarts, because a reconnaissance was out of date; 0 where a driver cannot know.
    pub restarts: u64,
}

impl Counts {
    /// Counts one.
    pub fn count(&mut self, status: OutcomeStatus) {
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

/// The results of a run, for [`Workload::check`].
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The ends of the transactions by kind, from the end of loading to the end of the run.
    pub by_kind: Vec<Counts>,
    /// The answers of [`Workload::audits`], in order; empty for one that was not answered.
    pub audits: Vec<Vec<u8>>,
    /// The summary of each population ([`Source::summary`]).
    pub summaries: Vec<Vec<u8>>,
}

impl Results {
    /// The ends of the transactions of one kind.
    pub fn of_kind(&self, kind: u8) -> Counts {
        self.by_kind.get(usize::from(kind)).copied().unwrap_or_default()
    }

    /// The summaries of all populations together, and the number of those that cannot be read.
    pub(crate) fn merged<S: Aggregate>(&self) -> (S, u64) {
        let (mut sum, mut unreadable) = (S::default(), 0);
        for summary in &self.summaries {
            match S::decode(summary) {
                Some(summary) => sum.merge(summary),
                None => unreadable += 1,
            }
        }
        (sum, unreadable)
    }

    /// All kinds together.
    pub fn total(&self) -> Counts {
        self.by_kind.iter().fold(Counts::default(), |mut sum, counts| {
            sum += *counts;
            sum
        })
    }

    /// Checks that nothing was aborted: for workloads whose transactions have no reason to.
    pub fn no_aborts(&self) -> Finding {
        let Counts { aborted, restarted_out, .. } = self.total();
        Finding::new("no_aborts", aborted + restarted_out == 0, || {
            format!(
                "{aborted} transactions aborted and {restarted_out} restarted in vain; none has a reason to"
            )
        })
    }
}

/// The result of checking something that must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name in the report.
    pub name: &'static str,
    /// The error with its figures; `None` if it holds.
    pub wrong: Option<String>,
    /// How often it was found not to hold. What is not counted is found once.
    pub times: u64,
}

impl Finding {
    /// Makes a finding; `wrong` is only called if it does not hold.
    pub fn new(name: &'static str, holds: bool, wrong: impl FnOnce() -> String) -> Finding {
        Finding::of(name, (!holds).then(wrong))
    }

    /// Makes the finding of an error, or of none.
    pub fn of(name: &'static str, wrong: Option<String>) -> Finding {
        Finding { name, times: u64::from(wrong.is_some()), wrong }
    }

    /// Makes the finding of an error that was found so often; `example` is only called if it was.
    pub fn counted(name: &'static str, times: u64, example: impl FnOnce() -> String) -> Finding {
        Finding { name, wrong: (times > 0).then(|| format!("{times} times; {}", example())), times }
    }
}
