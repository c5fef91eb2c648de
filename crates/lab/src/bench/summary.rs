//! The outcomes of the drivers, as a [`Run`] of the report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ordain_checker::{Anomaly, Bound, Level};
use ordain_family::Replication;
use ordain_model::{Datum, Reads, system};
use ordain_workload::{Counts, Finding};

use super::{Point, System};
use crate::disturbance::Disturbance;
use crate::embedded::{self, Grid, Kept, Measured, Taken, parts_of};
use crate::enough::{Asking, Load};
use crate::report::{
    AUDITED, Allowed, Check, CheckpointOfRun, ENOUGH, KeptOfRun, KindOfRun, Latency, MEASURED, Run,
    SnapshotsOfRun, StretchOfRun,
};
use crate::resp::{FormName, RespMeasured};
use crate::staleness::Staleness;
use crate::stretches::{Stretch, Stretches};
use crate::tally::{Book, TICK, Tally, add_up};

/// The check of a run that has ended before its time: only such a run has it.
pub(super) const COMPLETED: &str = "completed";

/// The outcome of a driver, whichever it is.
struct Outcome<'a> {
    book: &'a Book,
    findings: Vec<Finding>,
    asking: Asking,
    disturbance: &'a Disturbance,
    /// Audits that were asked for, and those of them that were answered.
    audited: (usize, usize),
}

/// True if a finding is of an anomaly that an isolation level allows.
fn is_allowed(finding: &Finding, level: Level) -> bool {
    let anomaly = Anomaly::ALL.into_iter().find(|anomaly| anomaly.check() == finding.name);
    anomaly.is_some_and(|anomaly| level.forbids(anomaly) == Bound::Nobody)
}

impl Run {
    /// Puts in what was answered, and what must hold of it.
    fn put(&mut self, outcome: Outcome<'_>, point: &Point) {
        let Outcome { book, mut findings, asking, disturbance, audited } = outcome;
        let (workload, rate) = (&*point.workload, point.rate);
        let mut all = Counts::default();
        let mut operations = 0.0;
        let mut latency = book.late_us.clone();
        for ((name, tally), accesses) in workload.kinds().iter().zip(&book.kinds).zip(workload.accesses()) {
            let Tally { counts, latency_us } = tally;
            all += *counts;
            operations += counts.committed as f64 * accesses;
            self.restarts += counts.restarts;
            add_up(&mut latency, latency_us);
            if workload.kinds().len() > 1 && *counts != Counts::default() {
                let kind = KindOfRun {
                    committed: counts.committed,
                    aborted: counts.aborted + counts.restarted_out,
                    restarts: counts.restarts,
                    latency_us: Latency::from(latency_us),
                };
                self.kinds.insert(name, kind);
            }
        }
        let seconds = book.seconds.max(f64::MIN_POSITIVE);
        self.seconds = book.seconds;
        self.committed = all.committed;
        self.aborted = all.aborted + all.restarted_out;
        self.txn_per_s = all.committed as f64 / seconds;
        self.op_per_s = operations / seconds;
        self.offered_txn_per_s = rate;
        self.behind = rate.map(|_| book.behind);
        self.latency_us = Latency::from(&latency);
        // The last tick is not a whole one.
        let whole = (book.seconds / TICK.as_secs_f64()) as usize;
        let tick = |(i, commits): (usize, &u64)| ((i + 1) as f64 * TICK.as_secs_f64(), *commits);
        self.timeline = book.timeline.iter().take(whole).enumerate().map(tick).collect();
        let unanswered = book.unanswered;
        let turned_away: u64 = book.whole_run.iter().map(|counts| counts.turned_away).sum();
        findings.push(Finding::new("all_answered", unanswered == 0, || {
            format!("{unanswered} transactions were never answered")
        }));
        if point.system.gives_up() {
            // It has lost races for too long.
            self.aborted += all.turned_away;
        } else {
            findings.push(Finding::new("none_turned_away", turned_away == 0, || {
                format!("{turned_away} transactions were turned away")
            }));
        }
        let load = Load { loops: asking.loops, clients: self.clients, is_open: rate.is_some() };
        let (asked, answered) = audited;
        findings.extend([
            Finding::of(ENOUGH, load.too_little(all.committed)),
            Finding::of(MEASURED, asking.not_together()),
            Finding::new(AUDITED, asked > 0 && answered == asked, || {
                format!("{answered} of {asked} audits of the data were answered")
            }),
        ]);
        self.disturbance = disturbance.clone();
        let level = point.system.level();
        for finding in findings {
            if is_allowed(&finding, level) {
                let times = finding.times;
                self.allowed.extend(finding.wrong.map(|found| (finding.name, Allowed { times, found })));
                continue;
            }
            self.wrong.extend(finding.wrong.iter().map(|wrong| format!("{}: {wrong}", finding.name)));
            // The same may have to hold of several nodes.
            let check = self.checks.entry(finding.name).or_insert(Check::Pass);
            if finding.wrong.is_some() {
                *check = Check::Fail;
            }
        }
    }
}

/// A run in this process.
pub(super) fn embedded_run(point: &Point, measured: &embedded::Measured, mut run: Run) -> Run {
    let workload = &*point.workload;
    let mut findings: Vec<Finding> = measured.seen.iter().flat_map(|seen| workload.check(seen)).collect();
    findings.extend(replicas_agree(point, &measured.audits));
    findings.extend(same_primaries(point, measured.deposed.as_deref()));
    findings.extend(strict_is_fresh(point, measured.staleness.as_ref()));
    let Measured { book, asking, disturbance, audited, .. } = measured;
    run.put(Outcome { book, findings, asking: *asking, disturbance, audited: *audited }, point);
    run.load_seconds = measured.load_seconds;
    run.checkpoint = measured.checkpoint.zip(measured.book.stretches.as_ref()).map(checkpoint_of);
    run.snapshots = measured.staleness.as_ref().map(|staleness| snapshots_of(staleness, &measured.kept));
    run.agreement.clone_from(&measured.agreement);
    run.peak_rss_bytes = measured.peak_rss_bytes;
    run.cpu_us_per_txn = embedded_cpu(measured, run.committed);
    run.cpu_us_per_txn_by_node = cpu_by_node(measured, run.committed);
    run
}

/// Staleness of reads on snapshots, and contents kept for them.
fn snapshots_of(staleness: &Staleness, kept: &[Kept]) -> SnapshotsOfRun {
    let us = &staleness.us;
    let share = |count: u64| count as f64 / us.len().max(1) as f64;
    let mut sum = staleness.fresh();
    let mut cdf = vec![(0, share(sum))];
    for step in us.iter_log(1, 2.0).skip(1) {
        sum += step.count_since_last_iteration();
        cdf.push((step.value_iterated_to(), share(sum)));
    }
    let mean = |of: fn(&Kept) -> f64| kept.iter().map(of).sum::<f64>() / kept.len().max(1) as f64;
    let most = |of: fn(&Kept) -> f64| kept.iter().map(of).fold(0.0, f64::max);
    SnapshotsOfRun {
        reads: us.len(),
        fresh: share(staleness.fresh()),
        staleness_us: Latency::from(us),
        staleness_cdf: cdf,
        kept: KeptOfRun {
            looks: kept.len() as u64,
            per_record: mean(|kept| kept.older / kept.records.max(1.0)),
            per_changed_record: mean(|kept| kept.older / kept.changed.max(1.0)),
            p99: most(|kept| kept.p99),
            max: most(|kept| kept.max),
            epochs: most(|kept| kept.epochs),
        },
    }
}

/// Strict reads miss nothing that any client had been answered with before.
fn strict_is_fresh(point: &Point, staleness: Option<&Staleness>) -> Option<Finding> {
    let System::Embedded { ours, .. } = &point.system else { return None };
    if ours.reads() != Reads::Strict {
        return None;
    }
    let staleness = staleness?;
    let stale = staleness.us.len() - staleness.fresh();
    Some(Finding::new("strict_is_fresh", stale == 0, || {
        format!("{stale} strict reads missed an answer, by {} us at most", staleness.us.max())
    }))
}

/// Answers while a checkpoint was captured, and otherwise.
fn checkpoint_of((taken, stretches): (Taken, &Stretches)) -> CheckpointOfRun {
    let of = |stretch: &Stretch, cpu: Duration| {
        let (seconds, committed) = (stretch.length.0 as f64 / 1e6, stretch.latency_us.len());
        StretchOfRun {
            seconds,
            txn_per_s: committed as f64 / seconds.max(f64::MIN_POSITIVE),
            latency_us: Latency::from(&stretch.latency_us),
            pause_us: stretch.pause.length.0,
            pause_cpu_us: stretch.pause.cpu.as_micros() as u64,
            pause_stolen_us: stretch.pause.stolen.as_micros() as u64,
            own_pause_us: stretch.own_pause.0,
            cpu_us_per_txn: cpu.as_secs_f64() * 1e6 / committed.max(1) as f64,
        }
    };
    let Taken { asked, complete, cpu: [cpu_during, cpu_beside] } = taken;
    let (during, beside) = (of(&stretches.during, cpu_during), of(&stretches.beside, cpu_beside));
    CheckpointOfRun { asked_s: asked, complete_s: complete, during, beside }
}

/// A run over sockets.
pub(super) fn resp_run(point: &Point, measured: &RespMeasured, mut run: Run) -> Run {
    if let Some(failure) = &measured.failure {
        run.wrong.push(failure.clone());
        run.checks.insert(COMPLETED, Check::Fail);
    }
    let RespMeasured { book, asking, disturbance, seen, .. } = measured;
    let findings = measured.findings.clone();
    let is_native = matches!(
        &point.system,
        System::Served { form: FormName::Native, .. } | System::Remote { form: FormName::Native, .. }
    );
    // Another's server keeps no digest that could be asked for.
    let asked: Vec<bool> =
        point.workload.audits().iter().map(|audit| is_native || *audit != system::DIGEST).collect();
    let answers = seen.audits.iter().zip(&asked).filter(|(_, is_asked)| **is_asked);
    let answered = answers.filter(|(answer, _)| !answer.is_empty()).count();
    let audited = (asked.iter().filter(|is_asked| **is_asked).count(), answered);
    run.put(Outcome { book, findings, asking: *asking, disturbance, audited }, point);
    run.load_seconds = measured.load_seconds;
    run.peak_rss_bytes = measured.server_peak_rss_bytes;
    let per_txn = |time| per_txn(time, run.committed);
    let mut parts: BTreeMap<String, f64> = measured
        .server_cpu
        .iter()
        .map(|(thread, time)| (format!("server: {thread}"), per_txn(*time)))
        .collect();
    parts.insert("driver: clients".to_owned(), per_txn(measured.client_cpu));
    run.cpu_us_per_txn = parts;
    run
}

/// All replicas must have come to the same state.
fn replicas_agree(point: &Point, audits: &[Vec<Vec<u8>>]) -> Option<Finding> {
    let System::Embedded { grid: Grid { apart: false, replicas: 2.., .. }, .. } = &point.system else {
        return None;
    };
    let digest = |audits: &Vec<Vec<u8>>| {
        let answer = audits.first().map(Vec::as_slice).unwrap_or_default();
        String::from_utf8_lossy(Datum::first(answer).as_bytes().unwrap_or_default()).into_owned()
    };
    let digests: Vec<String> = audits.iter().map(digest).collect();
    let same = digests.windows(2).all(|pair| pair[0] == pair[1]) && !digests[0].is_empty();
    Some(Finding::new("replicas_agree", same, || {
        format!("the digests of the replicas: {}", digests.join(", "))
    }))
}

/// No primary may have been given up in the middle: what was measured then is something else.
fn same_primaries(point: &Point, deposed: Option<&str>) -> Option<Finding> {
    let System::Embedded { grid: Grid { replication: Replication::Async, .. }, .. } = &point.system else {
        return None;
    };
    let wrong = || format!("in the end {}", deposed.unwrap_or_default());
    Some(Finding::new("same_primaries", deposed.is_none(), wrong))
}

/// Processor time of each node, if there are several: the sum is that of all, but for the disk threads.
fn cpu_by_node(measured: &embedded::Measured, committed: u64) -> Vec<BTreeMap<String, f64>> {
    let nodes: BTreeSet<u16> = measured.loops.iter().map(|used| used.node).collect();
    if nodes.len() < 2 {
        return Vec::new();
    }
    let of = |node| {
        let parts = parts_of(measured.loops.iter().filter(|used| used.node == node)).into_iter();
        parts.map(|(name, time)| (name.to_owned(), per_txn(time, committed))).collect()
    };
    nodes.into_iter().map(of).collect()
}

fn per_txn(time: Duration, committed: u64) -> f64 {
    time.as_secs_f64() * 1e6 / committed.max(1) as f64
}

/// Processor time for each committed transaction, by role or part of the driver.
fn embedded_cpu(measured: &embedded::Measured, committed: u64) -> BTreeMap<String, f64> {
    let per_txn = |time| per_txn(time, committed);
    let mut parts: BTreeMap<String, f64> =
        parts_of(&measured.loops).into_iter().map(|(name, time)| (name.to_owned(), per_txn(time))).collect();
    // What the process used beyond its loops is the disk thread's, but for the little that leading takes.
    let loops: Duration = measured.loops.iter().map(|used| used.cpu).sum();
    if !measured.process_cpu.is_zero() {
        parts.insert("disk thread".to_owned(), per_txn(measured.process_cpu.saturating_sub(loops)));
    }
    parts
}
