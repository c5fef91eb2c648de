//! What the drivers tell, as a [`Run`] of the report.

use std::collections::BTreeMap;
use std::time::Duration;

use ordain_workload::{Counts, Finding, Seen, Workload};

use super::Point;
use crate::embedded::{self, parts_of};
use crate::report::{Check, KindOfRun, Latency, Run};
use crate::resp::RespMeasured;
use crate::tally::{Book, TICK, Tally};

/// The check of a run that has ended before its time: only such a run has it.
pub(super) const COMPLETED: &str = "completed";

/// What both drivers tell of a run.
struct Told<'a> {
    seconds: f64,
    load_seconds: f64,
    book: &'a Book,
    seen: &'a Seen,
    findings: Vec<Finding>,
    unanswered: u64,
}

impl Told<'_> {
    /// Puts into a run what was measured, and what must hold of it.
    fn put(self, workload: &dyn Workload, rate: Option<f64>, run: &mut Run) {
        let mut all = Counts::default();
        let mut operations = 0.0;
        let mut latency = self.book.late_us.clone();
        for ((name, tally), accesses) in
            workload.kinds().iter().zip(&self.book.kinds).zip(workload.accesses())
        {
            let Tally { counts, latency_us } = tally;
            all += *counts;
            operations += counts.committed as f64 * accesses;
            run.restarts += counts.restarts;
            latency.add(latency_us).expect("all histograms of a book have the same bounds");
            if workload.kinds().len() > 1 && *counts != Counts::default() {
                let kind = KindOfRun {
                    committed: counts.committed,
                    aborted: counts.aborted + counts.restarted_out,
                    restarts: counts.restarts,
                    latency_us: Latency::from(latency_us),
                };
                run.kinds.insert(name, kind);
            }
        }
        let seconds = self.seconds.max(f64::MIN_POSITIVE);
        run.seconds = self.seconds;
        run.load_seconds = self.load_seconds;
        run.committed = all.committed;
        run.aborted = all.aborted + all.restarted_out;
        run.txn_per_s = all.committed as f64 / seconds;
        run.op_per_s = operations / seconds;
        run.offered_txn_per_s = rate;
        run.behind = rate.map(|_| self.book.behind);
        run.latency_us = Latency::from(&latency);
        // The last tick is not a whole one.
        let whole = (self.seconds / TICK.as_secs_f64()) as usize;
        let tick = |(i, commits): (usize, &u64)| ((i + 1) as f64 * TICK.as_secs_f64(), *commits);
        run.timeline = self.book.timeline.iter().take(whole).enumerate().map(tick).collect();
        let mut findings = self.findings;
        let (unanswered, turned_away) = (self.unanswered, self.seen.total().turned_away);
        findings.push(Finding::new("all_answered", unanswered == 0, || {
            format!("{unanswered} transactions were never answered")
        }));
        findings.push(Finding::new("none_turned_away", turned_away == 0, || {
            format!("{turned_away} transactions were turned away")
        }));
        for finding in findings {
            run.wrong.extend(finding.wrong.iter().map(|wrong| format!("{}: {wrong}", finding.name)));
            run.checks.insert(finding.name, Check::from(finding.wrong.is_none()));
        }
    }
}

/// A run in this process.
pub(super) fn tell_embedded(point: &Point, measured: &embedded::Measured, mut run: Run) -> Run {
    let workload = &*point.workload;
    let told = Told {
        seconds: measured.seconds,
        load_seconds: measured.load_seconds,
        book: &measured.book,
        seen: &measured.seen,
        findings: workload.check(&measured.seen),
        unanswered: measured.unanswered,
    };
    told.put(workload, point.rate, &mut run);
    run.peak_rss_bytes = measured.peak_rss_bytes;
    run.cpu_us_per_txn = embedded_cpu(measured, run.committed);
    run
}

/// A run over sockets.
pub(super) fn tell_resp(point: &Point, measured: &RespMeasured, mut run: Run) -> Run {
    let workload = &*point.workload;
    if let Some(failure) = &measured.failure {
        run.wrong.push(failure.clone());
        run.checks.insert(COMPLETED, Check::Fail);
    }
    let told = Told {
        seconds: measured.seconds,
        load_seconds: measured.load_seconds,
        book: &measured.book,
        seen: &measured.seen,
        findings: measured.findings.clone(),
        unanswered: measured.unanswered,
    };
    told.put(workload, point.rate, &mut run);
    run.peak_rss_bytes = measured.server_peak_rss_bytes;
    let per_txn = |time: Duration| time.as_secs_f64() * 1e6 / run.committed.max(1) as f64;
    let mut parts: BTreeMap<String, f64> = measured
        .server_cpu
        .iter()
        .map(|(thread, time)| (format!("server: {thread}"), per_txn(*time)))
        .collect();
    parts.insert("driver: clients".to_owned(), per_txn(measured.client_cpu));
    run.cpu_us_per_txn = parts;
    run
}

/// Processor time for each committed transaction, by role or part of the driver.
fn embedded_cpu(measured: &embedded::Measured, committed: u64) -> BTreeMap<String, f64> {
    let per_txn = |time: Duration| time.as_secs_f64() * 1e6 / committed.max(1) as f64;
    let mut parts: BTreeMap<String, f64> =
        parts_of(&measured.loops).into_iter().map(|(name, time)| (name.to_owned(), per_txn(time))).collect();
    // What the process used beyond its loops is the disk thread's, but for the little that leading takes.
    let loops: Duration = measured.loops.iter().map(|used| used.cpu).sum();
    if !measured.process_cpu.is_zero() {
        parts.insert("disk thread".to_owned(), per_txn(measured.process_cpu.saturating_sub(loops)));
    }
    parts
}
