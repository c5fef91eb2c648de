//! The lab: workloads driven against engines, with checks, reports and figures.
//!
//! | modules | what they are |
//! |---|---|
//! | `bench`, `workloads` | `ordain bench WORKLOAD`: its flags, the knobs of each workload, the systems compared |
//! | `embedded` | the driver against the roles of nodes, on the real runtime and without client sockets |
//! | `resp`, `server` | the driver against a server that speaks the Redis protocol, one of ours or another's |
//! | `stage`, `schedule`, `tally`, `stretches`, `staleness` | parts of both drivers: the stages of a run, the times of an open loop, answers counted, answers while a checkpoint is captured, staleness of reads |
//! | `ceiling`, `failover`, `pauses`, `cluster` | `ordain bench ceiling`, `failover` and `pauses`; clusters of processes |
//! | [`figures`], `simulated`, `scale_out` | `ordain lab`: the papers' figures; clusters of more nodes in the simulator, with measured costs, and as a model |
//! | `meter`, `demand`, `host` | processor time by role, throughput with more cores that is extrapolated from it, the machine |
//! | `enough`, `disturbance`, `conditions`, `ratio` | the least that a run must commit, use of the machine by others, what captions name, ratios and why there is none |
//! | [`report`], `table`, `plot`, `html` | the JSON of the outer contract, tables, plots and pages |
//! | [`options`], `progress`, `interrupt` | options of engines on the command line, the line meanwhile, Ctrl-C |
//!
//! The data are checked after each run, and a run whose checks fail is no result. Settings that are compared run in turns
//! within one invocation, so that a machine that gets slower favours none. A throughput can be given as a share of the
//! ceiling of the same minute.

mod agreement;
mod bench;
mod ceiling;
mod cluster;
mod conditions;
mod demand;
mod disturbance;
mod embedded;
mod enough;
mod failover;
pub mod figures;
mod host;
mod html;
mod interrupt;
mod loading;
mod meter;
pub mod options;
mod pauses;
mod plot;
mod progress;
mod ratio;
pub mod report;
mod resp;
mod scale_out;
mod schedule;
mod server;
mod simulated;
mod stage;
mod staleness;
mod stretches;
mod table;
mod tally;
mod workloads;

use bench::BenchArgs;

/// The driver over sockets and a node behind one, for tests of the whole product.
pub mod sockets {
    pub use crate::bench::Ours;
    pub use crate::embedded::Length;
    pub use crate::progress::Progress;
    pub use crate::resp::{FormName, RespMeasured, RespSetup, Target, run};
    pub use crate::server::{Launch, Server};
}

/// The subcommands of `ordain bench`.
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// YCSB: transactions that read or increment records; the sum of the counters is checked afterwards
    Ycsb(BenchArgs<workloads::ycsb::YcsbKnobs>),
    /// Bank: transfers that abort where the funds are missing; no money may be made or lost
    Bank(BenchArgs<workloads::bank::BankKnobs>),
    /// TPC-C: all nine tables, all five transactions; the consistency conditions are checked
    Tpcc(BenchArgs<workloads::tpcc::TpccKnobs>),
    /// The microbenchmarks of the Calvin and the regions papers; the sum of the counters is checked
    Micro(BenchArgs<workloads::micro::MicroKnobs>),
    /// List-append: every answer is judged, and a breach of serializability is named
    Append(BenchArgs<workloads::append::AppendKnobs>),
    /// Ceiling: record accesses of a workload with no transaction system at all, the best that this machine can do
    Ceiling(ceiling::CeilingArgs),
    /// For how long writes are not acknowledged when a node that leads is killed
    Failover(failover::FailoverArgs),
    /// For how long other clients wait while a node does something large: checkpoints, moves, FLUSHALL and the like
    Pauses(pauses::PausesArgs),
}

/// Runs a benchmark; returns whether all of its checks passed.
///
/// # Errors
/// A parameter that makes no sense, before anything has run; or what went wrong in a run.
pub fn run(command: BenchCommand) -> anyhow::Result<bool> {
    interrupt::watch()?;
    match command {
        BenchCommand::Ycsb(args) => bench::run(&args),
        BenchCommand::Bank(args) => bench::run(&args),
        BenchCommand::Tpcc(args) => bench::run(&args),
        BenchCommand::Micro(args) => bench::run(&args),
        BenchCommand::Append(args) => bench::run(&args),
        BenchCommand::Ceiling(args) => ceiling::run(&args),
        BenchCommand::Failover(args) => failover::run(&args),
        BenchCommand::Pauses(args) => pauses::run(&args),
    }
}
