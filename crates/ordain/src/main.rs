//! The command `ordain`.
//!
//! Exit 0: done. 1: what was asked failed. 2: wrong usage. An error is one line on stderr.

mod checkpoint;
mod cluster;
mod engines;
mod log;
mod memory;
mod object_store;
mod restore;
mod row;
mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A distributed, transactional key-value database that speaks the Redis protocol.
///
/// Without a command it runs one node, as `ordain serve` does.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one node.
    Serve(Box<serve::ServeArgs>),
    /// Run a whole cluster on this machine, or look at any.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// List the engines: papers, levels, what each can do, its options with defaults and ranges.
    Engines(engines::EnginesArgs),
    /// Measure a workload, or what this machine could do at best.
    #[command(subcommand)]
    Bench(Box<ordain_lab::BenchCommand>),
    /// Reproduce the papers' figures: tables, plots and a page, with their numbers beside ours.
    #[command(subcommand)]
    Lab(ordain_lab::figures::LabCommand),
    /// Run a whole cluster with faults in a simulator, from a seed.
    Sim(sim::SimArgs),
    /// Look at, verify and trim the input log of a stopped node.
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Look at and verify checkpoints, of a node or in a store; restore a node or a whole cluster.
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = memory::give_back_now_and_then() {
        eprintln!("ordain: no thread could be started: {error}");
        return ExitCode::from(1);
    }
    let done = match cli.command {
        None => serve::run(cli.serve),
        Some(Command::Serve(args)) => serve::run(*args),
        Some(Command::Cluster(command)) => cluster::run(&command),
        Some(Command::Engines(args)) => engines::run(&args),
        Some(Command::Bench(command)) => ordain_lab::run(*command),
        Some(Command::Lab(command)) => ordain_lab::figures::run(command),
        Some(Command::Sim(args)) => sim::run(&args),
        Some(Command::Log(command)) => log::run(&command),
        Some(Command::Checkpoint(command)) => checkpoint::run(&command),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("ordain: {error:#}");
            ExitCode::from(1)
        }
    }
}
