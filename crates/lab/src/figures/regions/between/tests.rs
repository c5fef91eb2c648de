//! Tests of the figures of several regions: their points, and what their requirements make of measured values.

use super::super::super::verdict::Verdict::{self, Below, Differs, Holds, Unknown};
use super::super::{LOCKS, NAMES};
use super::*;
use crate::agreement::Agreement;
use crate::bench::Bench;
use crate::embedded::Length;
use crate::plot::testing;
use crate::progress::Progress;
use crate::report::Latency;

/// A run of two regions: transactions a second of a region, and their latencies in milliseconds, local ones first.
fn run(line: &str, x: f64, rates: [u64; 2], latencies_ms: [u64; 2]) -> (String, f64, Run) {
    let kind = |rate: u64, ms: u64| {
        let latency_us =
            Latency { mean: ms as f64 * 1e3, p50: ms * 1_000, p99: ms * 2_000, ..Latency::default() };
        KindOfRun { committed: rate * 2, latency_us, ..KindOfRun::default() }
    };
    let kinds = [ONE_REGION, MULTI_REGION].into_iter().zip(rates).zip(latencies_ms);
    let kinds = kinds.filter(|((_, rate), _)| *rate > 0);
    let kinds = kinds.map(|((name, rate), ms)| (name, kind(rate, ms))).collect();
    (
        line.to_owned(),
        x,
        Run { nodes: 2, kinds, ..testing::run("e", 1, (rates[0] + rates[1]) as f64 * 2.0, true) },
    )
}

fn summary(figure: &Experiment, runs: Vec<(String, f64, Run)>) -> Summary {
    figure.summary(&Measured { runs, ..Measured::default() })
}

fn verdicts(figure: &Experiment, runs: Vec<(String, f64, Run)>) -> Vec<(String, Verdict)> {
    summary(figure, runs).shapes.into_iter().map(|shape| (shape.must, shape.verdict)).collect()
}

/// The verdict on the one claim that begins so and has these words.
fn verdict(all: &[(String, Verdict)], start: &str, words: &str) -> Verdict {
    let mut found = all.iter().filter(|(must, _)| must.starts_with(start) && must.contains(words));
    let (_, verdict) = found.next().unwrap_or_else(|| panic!("{start} {words}: {all:?}"));
    assert!(found.next().is_none(), "{start} {words}");
    *verdict
}

#[test]
fn every_engine_has_points_with_few_records_and_with_many() {
    for (figure, least) in [(&F1, 27), (&F2, 24), (&F3, 9)] {
        for size in [Size::Quick, Size::Full] {
            let points = figure.points(size, 2).unwrap();
            assert!(points.len() >= least, "{} {}", figure.title, points.len());
            for (name, _) in NAMES {
                assert!(points.iter().any(|point| point.line == name), "{name}");
            }
            let mut seconds = 0;
            for FigurePoint { point, measure, .. } in &points {
                assert_eq!(point.workload.name(), "micro-regions");
                let text = point.system.to_string();
                assert!(text.contains("3 storage nodes each"), "{text}");
                seconds += (measure.unwrap() + size.warmup()).as_secs();
            }
            // Starting and loading come on top.
            let (quick, full) = (90, 17 * 60);
            let runs = (figure.repetitions)(size) as u64;
            assert!(seconds * runs <= size.pick(quick, full), "{} {seconds} s", figure.title);
        }
    }
}

#[test]
fn a_run_lasts_for_200_round_trips() {
    let seconds = |size, round_trip| long_enough(size, round_trip).as_secs_f64();
    assert_eq!([0.0, 50.0, 100.0, 200.0].map(|ms| seconds(Size::Full, ms)), [10.0, 10.0, 20.0, 40.0]);
    assert_eq!([0.0, 50.0, 200.0].map(|ms| seconds(Size::Quick, ms)), [1.0, 1.0, 4.0]);
    let point = F2.points(Size::Full, 2).unwrap().into_iter().find(|point| point.x == 200.0).unwrap();
    assert_eq!(point.measure, Some(Duration::from_secs(40)));
}

#[test]
fn classes_have_clients_of_their_own_and_increments_of_both_regions_add_up() {
    for (name, engine) in engines() {
        for (regions, multi) in [(2, 0.2), (3, 1.0)] {
            let mut line = line(name.clone(), engine, regions, 0);
            let at = At { multi, regions, round_trip: 2.0, ..HERE };
            let workload = at.set(Size::Quick, &mut line).unwrap();
            // So few that 400 transactions say something of them.
            (line.threads, line.clients) = (1, 8 * usize::from(regions));
            let mut bench = Bench::embedded(Length::Txns(400), None);
            let point = line.at(0.0, workload).point;
            let run = bench.measure(&point, 1, 1, &Progress::new(Duration::ZERO)).unwrap();
            assert!(run.passed() && run.checks.contains_key("increments"), "{name} {:?}", run.wrong);
            let committed = |kind: &str| run.kinds.get(kind).map_or(0, |kind| kind.committed);
            let (local, of_two) = (committed(ONE_REGION), committed(MULTI_REGION));
            assert_eq!(local + of_two + run.aborted, 400, "{name}");
            if multi == 1.0 {
                assert_eq!(local, 0);
            } else {
                assert!(
                    (60..=100).contains(&of_two),
                    "{name}: a fifth of 400, and one more for each loop: {of_two}"
                );
                let latency = |kind: &str| run.kinds[kind].latency_us.p50;
                assert!(
                    latency(MULTI_REGION) >= 2_000 && latency(MULTI_REGION) > latency(ONE_REGION),
                    "{name}"
                );
            }
        }
    }
}

/// Runs of all lines of F1: local transactions alone at other delays, and with 1%; with few records; and the latency of those of two regions.
fn shares(far: u64, with_little: u64, on_few: u64, multi_ms: u64) -> Vec<(String, f64, Run)> {
    let mut runs = Vec::new();
    for (name, _) in engines() {
        let one = Run { nodes: 1, ..run("", 0.0, [500, 0], [1, 0]).2 };
        runs.push((format!("{name}{ONE}"), 0.0, one));
        runs.push(run(&alone_at(&name, 0.0), 0.0, [1000, 0], [1, 0]));
        runs.push(run(&alone_at(&name, 200.0), 0.0, [far, 0], [1, 0]));
        runs.push(run(&name, 0.0, [1000, 0], [1, 0]));
        runs.push(run(&name, LITTLE, [with_little, 10], [1, multi_ms]));
        runs.push(run(&named(&name, HIGH), 0.0, [1000, 0], [1, 0]));
        runs.push(run(&named(&name, HIGH), SOME, [on_few, 10], [1, multi_ms]));
    }
    runs
}

#[test]
fn the_share_is_held_against_none_and_latency_against_a_round_trip() {
    let flat = "throughput of a region over that of one alone";
    let of = |runs: Vec<(String, f64, Run)>| {
        let all = verdicts(&F1, runs);
        [flat, "1% of two regions over that with none", "1%: latency", "falls with the share"]
            .map(|words| verdict(&all, LOCKS, words))
    };
    assert_eq!(of(shares(1000, 800, 500, 56)), [Holds; 4]);
    assert_eq!(of(shares(949, 799, 501, 57)), [Below, Below, Differs, Differs]);
    assert_eq!(of(Vec::new()), [Unknown; 4]);
    // Without the runs at one of the delays there is no verdict.
    let without = shares(1000, 800, 500, 56).into_iter().filter(|(line, ..)| !line.contains("200 ms"));
    assert_eq!(of(without.collect())[0], Unknown);
}

#[test]
fn both_kinds_are_in_the_table_apart() {
    let summary = summary(&F1, vec![run(SILO, LITTLE, [990, 10], [1, 52])]);
    let table = summary.tables[0].to_string();
    for number in ["990", "10", "1.0%", "52", "104"] {
        assert!(table.contains(number), "{number}: {table}");
    }
    let local = &summary.plots[0].series;
    assert_eq!((local.len(), local[0].at(LITTLE)), (1, Some(990.0)));
    assert_eq!(summary.plots[1].series[0].at(LITTLE), Some(10.0));
    assert!(summary.plots[3].series.is_empty(), "there are no runs with few records");
}

#[test]
fn what_is_left_is_held_against_no_delay() {
    let failing = |line: &str, failed: f64| {
        let (line, x, run) = run(line, ROUND_TRIP, [10, 1], [1, 51]);
        let agreement = Agreement { failed: [("conflict", failed)].into(), ..Agreement::default() };
        (line, x, Run { agreement: Some(agreement), ..run })
    };
    let of = |last_ms: u64, silo: f64| {
        let mut runs = Vec::new();
        for (name, _) in engines() {
            runs.push(run(&name, 0.0, [1000, 50], [1, 2]));
            runs.push(run(&name, ROUND_TRIP, [500, 40], [1, 54]));
            runs.push(run(&name, 200.0, [250, 30], [1, last_ms]));
        }
        runs.extend([failing("2PL, 50 records", 0.1), failing("Silo, 50 records", silo)]);
        runs
    };
    let both = |runs| {
        let all = verdicts(&F2, runs);
        [verdict(&all, SILO, "takes longer"), verdict(&all, "50 records", "Silo has more")]
    };
    assert_eq!(both(of(222, 0.1)), [Holds; 2]);
    assert_eq!(both(of(223, 0.09)), [Differs, Below]);
    assert_eq!(both(Vec::new()), [Unknown; 2]);
    let summary = summary(&F2, of(222, 0.1));
    assert_eq!(summary.plots[0].series[0].points, [(0.0, 1.0), (50.0, 0.5), (200.0, 0.25)]);
    assert_eq!(summary.plots[1].series[0].points, [(0.0, 1.0), (50.0, 0.8), (200.0, 0.6)]);
    assert!(summary.beside[0].ours.contains("2PL 0.50"), "{}", summary.beside[0].ours);
}

#[test]
fn four_regions_are_held_against_two() {
    let of = |rates: [u64; 2], ms: u64| {
        let runs = engines()
            .into_iter()
            .flat_map(|(name, _)| [run(&name, 2.0, [100, 10], [1, 50]), run(&name, 4.0, rates, [1, ms])]);
        let all = verdicts(&F3, runs.collect());
        ["local throughput", "throughput of two", "latency"].map(|words| verdict(&all, MVOCC, words))
    };
    assert_eq!(of([80, 8], 60), [Holds; 3]);
    assert_eq!(of([79, 7], 61), [Below, Below, Differs]);
}
