//! `ordain bench WORKLOAD`: load, warm up, measure, check; several settings in turns.
//!
//! Systems are compared: our engines in this very process or behind their sockets, and any server that speaks
//! the Redis protocol. A run starts a node of its own in an empty directory, so no run sees what another left; a server
//! that was there before must be empty, and is emptied between runs and in the end. After a run, what the workload
//! knows of its data must hold. With `--replay` the node is started once more from its log, and must come to the same
//! digest.

mod args;
mod measure;
mod ratios;
mod summary;
mod systems;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::disturbance::State;
use crate::embedded::{Grid, Length};
use crate::progress::Progress;
use crate::report::{
    Report, captioned, checkpoints_table, demands_of, kinds_table, runs_table, snapshots_table, whole,
};
use crate::workloads::Knobs;
use crate::{agreement, ceiling, demand, interrupt};
use ordain_workload::Workload;

pub use args::{BenchArgs, Common, scratch, seconds};
pub use measure::{Bench, registry};
pub use systems::{Durability, Ours, Point, System};

use summary::COMPLETED;

/// Runs `ordain bench WORKLOAD`; returns whether all checks passed.
///
/// # Errors
/// A parameter that makes no sense, before anything runs; or what went wrong in a run, after what was measured
/// until then has been reported.
pub fn run<K: Knobs>(args: &BenchArgs<K>) -> anyhow::Result<bool> {
    args.common.check()?;
    let length = args.terms.check()?;
    let points = points(args)?;
    let mut report = Report::new();
    let result = measure_all(args, length, &points, &mut report);
    if !report.runs.is_empty() {
        println!("{}", captioned("Conditions", &report.runs));
        println!("{}", runs_table("Runs", &report.runs, whole));
        let demands = demands_of(&report.runs);
        let more = [
            checkpoints_table(&report.runs),
            snapshots_table(&report.runs),
            kinds_table(&report.runs),
            agreement::table(&report.runs),
            (!demands.is_empty()).then(|| demand::table(&demands)),
            ratios::table_of(&ratios::ratios(&report.runs)),
            report.machine_table(whole),
        ];
        more.into_iter().flatten().for_each(|table| println!("{table}"));
        for run in &report.runs {
            run.wrong.iter().for_each(|wrong| eprintln!("{} run {}: {wrong}", run.engine, run.repetition));
        }
    }
    args.common.write(&report)?;
    result.map(|()| report.passed())
}

fn points<K: Knobs>(args: &BenchArgs<K>) -> anyhow::Result<Vec<Point>> {
    let rates: Vec<Option<f64>> = match &args.terms.rate[..] {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    if let Some(partitions) = args.common.partitions.filter(|_| !args.knobs.has_partitions()) {
        bail!("--partitions {partitions} says nothing here: this workload does not look at them");
    }
    let mut points = Vec::new();
    let mut is_first = true;
    for grid in args.terms.grids() {
        for threads in args.common.thread_counts(grid.all().into()) {
            grid.check(threads)?;
            let partitions = partitions_of(args, &grid, threads)?;
            let mut add = |grid: &Grid, workload: &Arc<dyn Workload>| -> anyhow::Result<()> {
                for &rate in &rates {
                    for (system, clients) in args.terms.systems(grid)? {
                        let threads = match system {
                            // It has the threads that it has.
                            System::Remote { .. } if !is_first => continue,
                            System::Remote { .. } => 0,
                            _ => threads,
                        };
                        for checkpoint in args.terms.checkpoints(&system)? {
                            points.push(Point {
                                system: system.clone(),
                                threads,
                                clients,
                                rate,
                                workload: workload.clone(),
                                watch: args.terms.watch_reads && system.reads_on_snapshots(),
                                checkpoint,
                            });
                        }
                    }
                }
                Ok(())
            };
            let workloads = args.knobs.workloads(partitions)?;
            workloads.iter().try_for_each(|workload| add(&grid, workload))?;
            if let Some(apart) = args.terms.apart_from(&grid) {
                let workloads = args.knobs.alone(grid.nodes.into()).workloads(1)?;
                workloads.iter().try_for_each(|workload| add(&apart, workload))?;
            }
            is_first = false;
        }
    }
    Ok(points)
}

/// How many partitions the workload counts with. A node's is a run of slots, and so is a workload's partition: several
/// of the workload's may make up one of a node's, but none may be on two nodes.
fn partitions_of<K: Knobs>(args: &BenchArgs<K>, grid: &Grid, threads: usize) -> anyhow::Result<usize> {
    let nodes = usize::from(grid.nodes);
    match args.common.partitions {
        Some(partitions) if partitions % nodes != 0 => bail!(
            "--partitions {partitions} on --nodes {nodes}: a partition of the workload would be on two nodes: say a \
             multiple of {nodes}"
        ),
        Some(partitions) => Ok(partitions),
        None if nodes > 1 => Ok(nodes),
        None => Ok(threads),
    }
}

/// Runs every setting once, then every setting again, until each has had its repetitions.
fn measure_all<K: Knobs>(
    args: &BenchArgs<K>,
    length: Length,
    points: &[Point],
    report: &mut Report,
) -> anyhow::Result<()> {
    let each = match length {
        Length::Time { warmup, measure } => warmup + measure,
        Length::Txns(_) => Duration::from_secs(1),
    };
    let mut progress = Progress::new(each * (points.len() * args.common.repeat) as u32);
    let mut bench = Bench::embedded(length, args.common.data_dir.clone());
    bench.replay = args.terms.replay;
    bench.sockets = args.terms.sockets();
    bench.bugs = args.terms.bugs;
    let result = bench.measure_interleaved(args, points, each, &mut progress, report);
    let cleaned = bench.clean_up();
    drop(progress);
    // A server that has died cannot be cleaned up, and why it died is the better story.
    result.and(cleaned)?;
    if !args.terms.no_ceiling {
        ceiling::measure_machine(args.common.scratch()?.path(), report)?;
    }
    Ok(())
}

impl Bench {
    fn measure_interleaved<K: Knobs>(
        &mut self,
        args: &BenchArgs<K>,
        points: &[Point],
        each: Duration,
        progress: &mut Progress,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        for repetition in 1..=args.common.repeat {
            let seed = args.common.seed_of(repetition);
            // The ceiling of a workload and a number of threads; the workload by its address, as points share it.
            let mut ceilings: BTreeMap<(usize, usize), Option<(f64, State)>> = BTreeMap::new();
            for point in points {
                let place = (point.loops(), Arc::as_ptr(&point.workload).addr());
                if !args.terms.no_ceiling && point.threads > 0 && !ceilings.contains_key(&place) {
                    progress.show(Duration::ZERO, "the ceiling");
                    let run = self.ceiling(point, seed, args.terms.duration, repetition)?;
                    let rate = (run.txn_per_s, run.disturbance.state);
                    ceilings.insert(place, run.passed().then_some(rate));
                    report.runs.push(run);
                }
                interrupt::check()?;
                let mut run = self
                    .measure(point, seed, repetition, progress)
                    .with_context(|| format!("{} against {}", point.workload.name(), point.system))?;
                // No ratio from runs whose checks failed.
                let ceiling = ceilings.get(&place).copied().flatten().filter(|_| run.passed());
                run.share_of_ceiling = ceiling.map(|(ceiling, _)| run.txn_per_s / ceiling);
                run.ceiling_machine = ceiling.map(|(_, machine)| machine);
                let failed = run.wrong.first().filter(|_| run.checks.contains_key(COMPLETED)).cloned();
                report.runs.push(run);
                if let Some(failure) = failed {
                    bail!("{} ended before its time: {failure}", point.system);
                }
                progress.advance(each);
            }
        }
        Ok(())
    }
}
