//! The lab: workloads driven against engines, and what came out of it, told honestly.
//!
//! [`bench`](mod@bench) is `ordain bench WORKLOAD`, with the knobs of [`workloads`], and [`ceiling`] is `ordain bench
//! ceiling`, [`failover`] is `ordain bench failover`, [`pauses`] is `ordain bench pauses`; the binary mounts [`BenchCommand`]. [`figures`] is `ordain lab`.
//!
//! [`options`] is how commands take the options of engines.
//!
//! There are two drivers: [`embedded`] drives any [workload](ordain_workload::Workload) against the roles of a node, on
//! the real runtime and without sockets, and [`resp`] does the same to a server that speaks the Redis protocol, one of
//! ours ([`server`]) or another's. They have in common the [stages](stage) of a run, the [`schedule`] of an open loop,
//! and the [`tally`] of what was answered ([`stretches`] of it while a
//! checkpoint was captured), and [`staleness`] of what was read. [`meter`] tells apart where processor time goes, [`host`] is the machine,
//! [`demand`] is what service demands say about machines with more cores, [`scale_out`] about clusters with more nodes.
//!
//! [`report`] is the JSON of the outer contract and the tables that people read, [`plot`] and [`html`] are the pictures
//! and the page; [`progress`] is the line meanwhile, and [`interrupt`] is Ctrl-C.
//!
//! What holds for every figure: the data are checked after each run, and a run whose checks fail is no result.
//! Settings that are compared run in turns within one invocation, so that a machine that gets slower does not
//! favour whoever ran first. A throughput can be told as a share of the [`ceiling`] of the same minute.

pub mod bench;
pub mod ceiling;
pub mod demand;
pub mod embedded;
pub mod failover;
pub mod figures;
pub mod host;
pub mod html;
pub mod interrupt;
pub mod meter;
pub mod options;
pub mod pauses;
pub mod plot;
pub mod progress;
pub mod report;
pub mod resp;
pub mod scale_out;
pub mod schedule;
pub mod server;
pub mod stage;
pub mod staleness;
pub mod stretches;
pub mod tally;
pub mod workloads;

use bench::BenchArgs;

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
    /// The same record accesses with no transaction system at all: what this machine could do at best
    Ceiling(ceiling::CeilingArgs),
    /// For how long writes are not acknowledged when a node that leads is killed
    Failover(failover::FailoverArgs),
    /// For how long other clients wait while a node does something large: checkpoints, moves, FLUSHALL and the like
    Pauses(pauses::PausesArgs),
}

/// Runs a benchmark; says whether all of its checks passed.
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
