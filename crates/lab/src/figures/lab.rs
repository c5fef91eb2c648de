//! Runs `ordain lab`: measures the points of figures in turns, and writes the page, the pictures and the data.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::experiment::{FigurePoint, Measure, interleaved};
use super::registry::{FIGURES, Figure, find};
use super::{Experiment, LabCommand, ListArgs, Measured, Paper, RunArgs, Shape, Size, Summary};
use crate::bench::{Bench, scratch};
use crate::conditions::caption;
use crate::embedded::Length;
use crate::host::Host;
use crate::html::{self, Block, Page, Section};
use crate::interrupt;
use crate::plot::si;
use crate::progress::Progress;
use crate::report::{Run, check_writable, runs_table, write_json};
use crate::table::{Table, text};

/// Runs `ordain lab …`; returns whether every check of the data passed.
///
/// # Errors
/// A name that is no figure or cannot run, or a directory that cannot be written, before anything runs.
pub fn run(command: LabCommand) -> anyhow::Result<bool> {
    match command {
        LabCommand::List(args) => list(&args),
        LabCommand::Run(args) => {
            interrupt::watch()?;
            run_figures(&args)
        }
    }
}

fn list(args: &ListArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    println!("{}", all_figures().wrapped());
    write_json(args.json.as_deref(), &list_json())?;
    Ok(true)
}

/// A row for each figure and table of the papers.
fn all_figures() -> Table {
    let columns = vec![
        text("name", |figure: &&Figure| figure.id.to_owned()),
        text("paper", |figure: &&Figure| figure.paper().to_string()),
        text("where", |figure: &&Figure| figure.source.to_owned()),
        text("shows", |figure: &&Figure| figure.what.to_owned()),
        text("this version", |figure: &&Figure| figure.state()),
    ];
    Table::of("Every figure and table of the papers", &FIGURES, columns)
}

fn list_json() -> Value {
    let figures = FIGURES.iter().map(|figure| {
        json!({
            "name": figure.id,
            "paper": figure.paper(),
            "where": figure.source,
            "shows": figure.what,
            "runs": figure.experiment.map(|(_, part)| part),
            "missing": figure.missing(),
        })
    });
    json!({ "figures": figures.collect::<Vec<_>>() })
}

/// The figures that were asked for, in the order of the registry.
fn chosen(names: &[String]) -> anyhow::Result<Vec<(&'static Figure, &'static Experiment)>> {
    let runnable = || FIGURES.iter().filter_map(|figure| Some((figure, figure.experiment?.0)));
    let there = || runnable().map(|(figure, _)| figure.id).collect::<Vec<_>>().join(", ");
    for name in names.iter().filter(|name| *name != "all") {
        match find(name) {
            None => bail!("there is no figure '{name}'; those that this version can run: {}", there()),
            Some(figure) if figure.experiment.is_none() => {
                bail!(
                    "figure '{name}' cannot run in this version: {}; those that can: {}",
                    figure.state(),
                    there()
                )
            }
            Some(_) => {}
        }
    }
    let is_chosen = |figure: &Figure| names.iter().any(|name| name == "all" || name == figure.id);
    Ok(runnable().filter(|(figure, _)| is_chosen(figure)).collect())
}

/// Makes sure that files can be written to a directory, before anything runs.
fn prepare(out: &Path) -> anyhow::Result<()> {
    let refusal =
        || format!("cannot write to --out {}: name a directory that is yours, or can be made", out.display());
    fs::create_dir_all(out).with_context(refusal)?;
    let index = out.join("index.html");
    fs::OpenOptions::new().create(true).append(true).open(index).map(drop).with_context(refusal)
}

/// A figure with the points to measure.
struct Planned {
    figure: &'static Figure,
    experiment: &'static Experiment,
    points: Vec<FigurePoint>,
}

/// Makes up the points of figures, and sets the options that were given.
fn plan(args: &RunArgs, size: Size, host: &Host) -> anyhow::Result<Vec<Planned>> {
    let mut planned = Vec::new();
    let mut used = BTreeSet::new();
    for (figure, experiment) in chosen(&args.names)? {
        let mut points =
            experiment.points(size, host.cores).with_context(|| format!("figure {}", figure.id))?;
        for point in &mut points {
            used.extend(point.take_options(&args.options.given)?);
        }
        planned.push(Planned { figure, experiment, points });
    }
    if let Some((name, _)) = args.options.given.iter().find(|(name, _)| !used.contains(*name)) {
        bail!(
            "--option {name}: no engine of these figures has it, or each figure sets it itself: leave it out"
        );
    }
    Ok(planned)
}

impl RunArgs {
    /// The number of runs of each point of a figure.
    fn repetitions(&self, experiment: &Experiment, size: Size) -> usize {
        self.repetitions.map_or_else(|| (experiment.repetitions)(size), usize::from)
    }
}

fn run_figures(args: &RunArgs) -> anyhow::Result<bool> {
    let size = if args.full { Size::Full } else { Size::Quick };
    let host = Host::look();
    chosen(&args.names)?;
    prepare(&args.out)?;
    check_writable("--json", args.json.as_deref())?;
    scratch(args.data_dir.as_deref()).map(drop)?;
    let planned = plan(args, size, &host)?;
    let length = planned.iter().map(|Planned { experiment, points, .. }| {
        let measure = |point: &FigurePoint| point.measure.unwrap_or_else(|| (experiment.measure)(size));
        let once: Duration = points.iter().map(|point| size.warmup() + measure(point)).sum();
        once * args.repetitions(experiment, size) as u32
    });
    let mut progress = Progress::new(length.sum());
    let mut outcomes = Vec::new();
    let measure_all = || -> anyhow::Result<()> {
        for Planned { figure, experiment, points } in planned {
            let mut here = Here::new(args, size, experiment, &mut progress);
            let repetitions = args.repetitions(experiment, size);
            let mut measured = interleaved(&points, repetitions, experiment.with_ceiling, &mut here)
                .with_context(|| format!("figure {}", figure.id))?;
            progress.show(Duration::ZERO, "clusters in the simulator");
            measured.simulated = (experiment.simulate)(size, &measured)
                .with_context(|| format!("figure {} in the simulator", figure.id))?;
            let outcome = Outcome { figure, summary: experiment.summary(&measured), measured };
            outcome.write(&args.out, size, &host)?;
            outcomes.push(outcome);
        }
        Ok(())
    };
    // If a figure fails, those before it are reported all the same.
    let result = measure_all();
    drop(progress);
    report(args, size, &host, &outcomes)?;
    result.map(|()| outcomes.iter().all(Outcome::passed))
}

/// Writes the page and the data of all figures, and prints what they came to.
fn report(args: &RunArgs, size: Size, host: &Host, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let options = args.options.given.iter().map(|(name, value)| format!(" --option {name}={value}"));
    let repeated = args.repetitions.iter().map(|count| format!(" --repetitions {count}"));
    let options = repeated.chain(options);
    let (names, out, options) = (args.names.join(" "), args.out.display(), options.collect::<String>());
    let command = format!("ordain lab run {names} --{} --out {out}{options}", size.name());
    let page = page(outcomes, size, host, &command, &html::today());
    let index = args.out.join("index.html");
    fs::write(&index, page.html()).with_context(|| format!("cannot write {}", index.display()))?;
    let figures: Vec<Value> = outcomes.iter().map(|outcome| outcome.json(size, host)).collect();
    let json = json!({ "version": env!("CARGO_PKG_VERSION"), "host": host, "figures": figures });
    write_json(args.json.as_deref(), &json)?;
    println!("{}", verdicts(outcomes).wrapped());
    for outcome in outcomes {
        for (line, x, run) in &outcome.measured.runs {
            for wrong in &run.wrong {
                eprintln!("{}: {line} at {x}, run {}: {wrong}", outcome.figure.id, run.repetition);
            }
        }
    }
    println!("{}", index.display());
    Ok(())
}

/// So many times as long a point is measured at most, if too little is committed in its time.
const LONGER: u32 = 20;

/// Measures the points of a figure on this machine.
struct Here<'a> {
    bench: Bench,
    warmup: Duration,
    /// The time of measuring, where a point has none of its own.
    measure: Duration,
    seed: u64,
    progress: &'a mut Progress,
}

impl<'a> Here<'a> {
    fn new(args: &RunArgs, size: Size, experiment: &Experiment, progress: &'a mut Progress) -> Here<'a> {
        let (warmup, measure) = (size.warmup(), (experiment.measure)(size));
        let bench = Bench::embedded(Length::Time { warmup, measure }, args.data_dir.clone());
        Here { bench, warmup, measure, seed: args.seed, progress }
    }

    fn seed_of(&self, repetition: usize) -> u64 {
        self.seed.wrapping_add(repetition as u64 - 1)
    }
}

impl Measure for Here<'_> {
    fn measure(&mut self, point: &FigurePoint, repetition: usize) -> anyhow::Result<Run> {
        let (warmup, measure) = (self.warmup, point.measure.unwrap_or(self.measure));
        self.bench.length = Length::Time { warmup, measure };
        self.bench.longest = measure * LONGER;
        let run = self.bench.measure(&point.point, self.seed_of(repetition), repetition, self.progress);
        self.progress.advance(warmup + measure);
        run
    }

    fn ceiling(&mut self, point: &FigurePoint, repetition: usize) -> anyhow::Result<Run> {
        let duration = (self.warmup + self.measure).as_secs_f64();
        self.bench.ceiling(&point.point, self.seed_of(repetition), duration, repetition)
    }
}

/// Stands before what is no measurement.
const EXTRAPOLATED: &str = "Extrapolated from service demand, not measured: what nodes with more cores could do at best, if \
                            nothing waited for anything. No verdict rests on it.";

/// A figure that was run.
struct Outcome {
    figure: &'static Figure,
    measured: Measured,
    summary: Summary,
}

impl Outcome {
    fn passed(&self) -> bool {
        self.measured.runs.iter().all(|(_, _, run)| run.passed())
    }

    /// Writes the pictures and the data.
    fn write(&self, out: &Path, size: Size, host: &Host) -> anyhow::Result<()> {
        let id = self.figure.id;
        let plots = self.summary.plots.iter().chain(&self.summary.extrapolated);
        for (number, plot) in plots.enumerate() {
            let name = if number == 0 { format!("{id}.svg") } else { format!("{id}-{}.svg", number + 1) };
            let path = out.join(name);
            fs::write(&path, plot.svg()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let path = out.join(format!("{id}.json"));
        write_json(Some(&path), &self.json(size, host))
    }

    fn json(&self, size: Size, host: &Host) -> Value {
        let runs =
            self.measured.runs.iter().map(|(line, x, run)| json!({ "line": line, "x": x, "run": run }));
        json!({
            "name": self.figure.id,
            "paper": self.figure.paper(),
            "where": self.figure.source,
            "shows": self.figure.what,
            "missing": self.figure.missing(),
            "version": env!("CARGO_PKG_VERSION"),
            "host": host,
            "size": size,
            "passed": self.passed(),
            "conditions": caption(self.measured.runs.iter().map(|(_, _, run)| run)),
            "log": self.figure.experiment.map(|(experiment, _)| experiment.log.paper),
            "simulated": self.measured.simulated,
            "plots": self.summary.plots,
            "extrapolated": self.summary.extrapolated,
            "extrapolations": self.summary.extrapolations,
            "tables": self.summary.tables,
            "beside": self.summary.beside,
            "shapes": self.summary.shapes,
            "notes": self.summary.notes,
            "runs": runs.collect::<Vec<_>>(),
        })
    }

    fn section(&self) -> Section {
        let (Figure { id, source, what, .. }, paper) = (self.figure, self.figure.paper());
        let title =
            if paper == Paper::Ours { (*what).to_owned() } else { format!("{paper}, {source}: {what}") };
        let mut section = Section::new(id, &title);
        section.blocks.push(Block::Text(format!("{id}: {}.", self.figure.state())));
        section.blocks.extend(self.summary.plots.iter().cloned().map(Block::Plot));
        let tables = [self.summary.beside_table(), self.summary.shape_table()].into_iter().flatten();
        section.blocks.extend(tables.map(Block::Table));
        if !self.summary.notes.is_empty() {
            section.blocks.push(Block::Notes(self.summary.notes.clone()));
        }
        section.blocks.extend(self.summary.tables.iter().cloned().map(Block::Table));
        if !self.summary.extrapolated.is_empty() {
            section.blocks.push(Block::Text(EXTRAPOLATED.to_owned()));
            section.blocks.extend(self.summary.extrapolated.iter().cloned().map(Block::Plot));
            section.blocks.extend(self.summary.extrapolations_table().map(Block::Table));
        }
        let runs: Vec<Run> = self.measured.runs.iter().map(|(_, _, run)| run.clone()).collect();
        let caption = "What was measured: medians, from the least to the most";
        section.blocks.push(Block::Table(runs_table(caption, &runs, si)));
        section
    }
}

/// A row for each requirement of a figure, with its verdict.
fn verdicts(outcomes: &[Outcome]) -> Table {
    let shapes =
        outcomes.iter().flat_map(|outcome| outcome.summary.shapes.iter().map(move |shape| (outcome, shape)));
    type Row<'a> = (&'a Outcome, &'a Shape);
    let columns = vec![
        text("figure", |(outcome, _): &Row<'_>| outcome.figure.id.to_owned()),
        text("checks", |(outcome, _): &Row<'_>| if outcome.passed() { "pass" } else { "FAIL" }.to_owned()),
        text("must", |(_, shape): &Row<'_>| shape.must.clone()),
        text("claim", |(_, shape): &Row<'_>| shape.claim.clone()),
        text("verdict", |(_, shape): &Row<'_>| shape.verdict().to_owned()),
        text("ours", |(_, shape): &Row<'_>| shape.ours.clone()),
    ];
    Table::of("Verdicts", shapes, columns)
}

fn page(outcomes: &[Outcome], size: Size, host: &Host, command: &str, date: &str) -> Page {
    let mut sections: Vec<Section> = outcomes.iter().map(Outcome::section).collect();
    let mut all = Section::new("all", "All figures, and what is missing for them");
    all.blocks.push(Block::Table(all_figures()));
    sections.push(all);
    let shapes: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.summary.shapes).collect();
    let words =
        ["as in the paper", "as required", "beyond the paper", "beyond", "below", "differs", "no verdict"];
    let counts = words.map(|verdict| {
        let count = shapes.iter().filter(|shape| shape.verdict() == verdict).count();
        format!("{verdict}: {count}")
    });
    let checks = if outcomes.iter().all(Outcome::passed) {
        "Every check of the data that the runs left behind passed."
    } else {
        "Some runs failed the checks of their data: their points are not shown."
    };
    let effort = match size {
        Size::Quick => "A quick run: small databases and seconds a point, to be read as orders of magnitude.",
        Size::Full => "A full run.",
    };
    Page {
        title: "Ordain: the papers' figures".to_owned(),
        lead: format!(
            "{} of {} figures and tables, on one machine. Verdicts on what was measured: {}. {checks} {effort}",
            outcomes.len(),
            FIGURES.len(),
            counts.join("; "),
        ),
        facts: html::facts(env!("CARGO_PKG_VERSION"), host, date),
        commands: vec![command.to_owned()],
        sections,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use ordain_model::CheckpointMode;

    use super::super::scale;
    use super::super::verdict::Verdict;
    use super::*;
    use crate::bench::{Point, System};
    use crate::disturbance::{Disturbance, State};
    use crate::embedded::Grid;
    use crate::options::OptionArgs;
    use crate::plot::{Style, si, testing};
    use crate::report::{CheckpointOfRun, KeptOfRun, KindOfRun, Latency, SnapshotsOfRun, StretchOfRun};

    /// Computes what a machine would have measured.
    #[derive(Default)]
    struct Computed {
        asked: Vec<(String, f64, usize)>,
        fails: bool,
        /// The line that is disturbed at the first place, in every repetition.
        disturbed: Option<&'static str>,
    }

    impl Measure for Computed {
        fn measure(&mut self, point: &FigurePoint, repetition: usize) -> anyhow::Result<Run> {
            self.asked.push((point.line.clone(), point.x, repetition));
            let rate = 100_000.0 * point.point.threads as f64 * (1.0 + repetition as f64 / 100.0);
            let cpu = [("calvin", 6.0), ("sequencer", 1.0), ("driver: generate", 1.0)];
            let free = testing::run("calvin", repetition, rate, !self.fails);
            let disturbance = if self.disturbed == Some(&point.line) {
                let why = Some("others used 0.80 cores".to_owned());
                Disturbance { state: State::Disturbed, why, ..Disturbance::default() }
            } else {
                free.disturbance.clone()
            };
            Ok(Run {
                disturbance,
                threads: point.point.threads,
                cpu_us_per_txn: cpu
                    .iter()
                    .map(|(name, us)| ((*name).to_owned(), *us))
                    .collect::<BTreeMap<_, _>>(),
                latency_us: Latency { p50: 100, p99: 300, ..Latency::default() },
                timeline: (1..=60).map(|i| (f64::from(i) * 0.1, 10_000)).collect(),
                kinds: kinds(&point.point, rate),
                checkpoint: point.point.checkpoint.map(checkpoint),
                snapshots: point.point.watch.then(|| snapshots(&point.line)),
                ..free
            })
        }

        fn ceiling(&mut self, _point: &FigurePoint, repetition: usize) -> anyhow::Result<Run> {
            Ok(testing::run("ceiling", repetition, 1e6, true))
        }
    }

    /// As many of each kind, where figures are about them: in regions.
    fn kinds(point: &Point, rate: f64) -> BTreeMap<&'static str, KindOfRun> {
        let System::Embedded { grid: Grid { regions: Some(_), .. }, .. } = &point.system else {
            return BTreeMap::new();
        };
        let latency_us = Latency { p50: 100, p99: 300, ..Latency::default() };
        let of_kind = KindOfRun { committed: rate as u64, latency_us, ..KindOfRun::default() };
        point.workload.kinds().iter().map(|kind| (*kind, of_kind.clone())).collect()
    }

    fn checkpoint(mode: CheckpointMode) -> CheckpointOfRun {
        let stretch = |txn_per_s, pause_us| StretchOfRun { txn_per_s, pause_us, ..StretchOfRun::default() };
        let during = match mode {
            CheckpointMode::Naive => stretch(40_000.0, 900_000),
            CheckpointMode::Multiversion | CheckpointMode::ZigZag => stretch(91_000.0, 15_000),
        };
        CheckpointOfRun { asked_s: 1.5, complete_s: Some(2.5), during, beside: stretch(100_000.0, 9_000) }
    }

    /// What is strict misses nothing; of the others every other one does.
    fn snapshots(line: &str) -> SnapshotsOfRun {
        let (fresh, max) = if line == "strict" { (1.0, 0) } else { (0.5, 800) };
        let kept = KeptOfRun {
            per_record: 0.25,
            per_changed_record: 2.0,
            p99: 6.0,
            max: 9.0,
            epochs: 9.0,
            looks: 20,
        };
        SnapshotsOfRun {
            reads: 1_000,
            fresh,
            staleness_us: Latency { max, ..Latency::default() },
            staleness_cdf: vec![(0, fresh), (1_024, 1.0)],
            kept,
        }
    }

    fn computed(id: &str) -> Outcome {
        let figure = find(id).unwrap();
        let (experiment, _) = figure.experiment.unwrap();
        let points = experiment.points(Size::Quick, 2).unwrap();
        let mut measure = Computed::default();
        let measured = interleaved(&points, 2, experiment.with_ceiling, &mut measure).unwrap();
        Outcome { figure, summary: experiment.summary(&measured), measured }
    }

    #[test]
    fn points_are_measured_in_turns() {
        let mut points = calvin_points();
        points.retain(|point| !scale::is_on_nodes(&point.line));
        let mut measure = Computed::default();
        interleaved(&points, 3, false, &mut measure).unwrap();
        let lines: Vec<(usize, &str)> =
            measure.asked.iter().map(|(line, _, rep)| (*rep, line.as_str())).collect();
        let (low, high) = ("C = 0.0001", "C = 0.01");
        assert_eq!(lines[..5], [(1, low), (1, high), (1, low), (1, high), (2, low)]);
        assert_eq!(lines.len(), 12);
    }

    fn calvin_points() -> Vec<FigurePoint> {
        find("calvin-5").unwrap().experiment.unwrap().0.points(Size::Quick, 2).unwrap()
    }

    #[test]
    fn every_figure_that_runs_tells_a_whole_story() {
        for figure in FIGURES.iter().filter(|figure| figure.experiment.is_some()) {
            let outcome = computed(figure.id);
            let Summary { plots, shapes, .. } = &outcome.summary;
            assert!(!plots.is_empty() && !shapes.is_empty(), "{}", figure.id);
            for plot in plots {
                let svg = plot.svg();
                assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", figure.id);
                let drawn: usize = plot.series.iter().map(|series| series.points.len()).sum();
                assert!(drawn > 1, "{}", figure.id);
            }
            assert!(shapes.iter().any(|shape| shape.verdict != Verdict::Unknown), "{}", figure.id);
            let json = outcome.json(Size::Quick, &Host::look());
            assert_eq!(json["name"], figure.id);
            assert_eq!(json["passed"], true);
            assert!(json["runs"].as_array().is_some_and(|runs| !runs.is_empty()));
        }
    }

    #[test]
    fn figure_5_shows_the_measured_node_the_model_and_what_is_absent() {
        let outcome = computed("calvin-5");
        // What was measured leads; the model of many nodes comes after it, each node and all of them.
        let [cores, nodes, _] = &outcome.summary.plots[..] else { panic!("{:?}", outcome.summary.plots) };
        assert!(nodes.series.iter().all(|series| series.style != Style::Measured), "{nodes:?}");
        assert_eq!(nodes.series[0].points.last().map(|(x, _)| *x), Some(100.0));
        let names: Vec<&str> = cores.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["C = 0.0001", "C = 0.01", "the paper's one machine: 27 K"]);
        assert!(cores.subtitle.contains("durability fsync; logged and synced"), "{}", cores.subtitle);
        // X(c) is in a picture of its own.
        let [extrapolated] = &outcome.summary.extrapolated[..] else { panic!("{:?}", outcome.summary) };
        assert!(extrapolated.series.iter().all(|series| series.style != Style::Measured), "{extrapolated:?}");
        let name = "C = 0.01, X(c), extrapolated from service demand";
        let model = extrapolated.series.iter().find(|series| series.name == name).unwrap();
        assert_eq!(
            [1.0, 16.0].map(|cores| model.at(cores).map(si)),
            [Some("143 K".to_owned()), Some("1 M".to_owned())]
        );
        let text = outcome.section_html();
        for part in [
            "27 K txn/s on 8 virtual cores",
            "not a measurement",
            "beyond the paper",
            "sequencer",
            "Extrapolated from service demand, not measured",
            "whether the measured system wrote a log to disk it does not say",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    fn of_shapes(summary: &Summary) -> Vec<(Verdict, &str)> {
        summary.shapes.iter().map(|shape| (shape.verdict, shape.ours.as_str())).collect()
    }

    #[test]
    fn figure_3_has_a_line_for_each_mode_and_says_how_deep_each_dips() {
        let summary = computed("calvin-3").summary;
        let names: Vec<&str> = summary.plots[0].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names[..4], ["no checkpoint", "multiversion", "naive", "zigzag"]);
        let ours =
            "91 K txn/s for 1.0 s, at least 100 K, beside 100 K: 0.91; longest pause 15.0 ms, beside 9.0 ms";
        assert!(of_shapes(&summary).contains(&(Verdict::Holds, ours)), "{:?}", summary.shapes);
        assert!(
            summary
                .shapes
                .iter()
                .any(|shape| shape.must.starts_with("naive") && shape.verdict == Verdict::Holds)
        );
        assert!(summary.plots[0].notes.iter().any(|note| note.starts_with("zigzag: asked for after 1.5 s")));
    }

    #[test]
    fn e2_is_measured_on_two_nodes_too_by_share_of_transactions_on_both() {
        let summary = computed("paxflow-e2").summary;
        let [here, across] = &summary.plots[..] else { panic!("{:?}", summary.plots) };
        assert_eq!((here.series.len(), across.series.len(), summary.shapes.len()), (3, 6, 6));
        assert_eq!(across.series[4].name, "PaxFlow, snapshot reads, 20% on both nodes");
        assert_eq!(across.series[5].name, "PaxFlow, reads of a session, 20% on both nodes");
        assert!(summary.shapes.iter().all(|shape| shape.verdict == Verdict::Holds), "{:?}", summary.shapes);
        let points = find("paxflow-e2").unwrap().experiment.unwrap().0.points(Size::Quick, 2).unwrap();
        let far = points.iter().find(|point| point.line == across.series[4].name).unwrap();
        assert!(far.point.system.to_string().ends_with("on 2 nodes"), "{}", far.point.system);
        let share = far.point.workload.params().into_iter().find(|(name, _)| *name == "multi_partition");
        assert!(format!("{share:?}").contains("0.2"), "{share:?}");
    }

    #[test]
    fn e3_tells_how_stale_each_mode_is_and_e4_how_much_is_kept() {
        let summary = computed("paxflow-e3").summary;
        let names: Vec<&str> = summary.plots[1].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["previous", "session", "strict"]);
        assert_eq!(summary.plots[1].series[0].points, [(1.0, 50.0), (1_024.0, 100.0)]);
        let verdicts = of_shapes(&summary);
        assert!(verdicts.contains(&(Verdict::Holds, "the stalest misses 0 us")), "{verdicts:?}");
        assert!(summary.tables[0].html().contains("fresh %"));
        let summary = computed("paxflow-e4").summary;
        assert!(summary.shapes.iter().any(|shape| shape.ours == "at most 9 and that one, for 9 epochs"));
        // Nothing is kept for locked reads.
        let html = summary.tables[0].html();
        assert!(html.contains("PaxFlow, snapshot reads") && !html.contains("Calvin, locked reads"), "{html}");
    }

    impl Outcome {
        fn section_html(&self) -> String {
            page(std::slice::from_ref(self), Size::Quick, &Host::look(), "c", "2026-11-22").html()
        }
    }

    #[test]
    fn a_figure_whose_checks_failed_has_no_points_and_says_so() {
        let figure = find("calvin-5").unwrap();
        let mut measure = Computed { fails: true, ..Computed::default() };
        let measured = interleaved(&calvin_points(), 1, false, &mut measure).unwrap();
        let summary = figure.experiment.unwrap().0.summary(&measured);
        let outcome = Outcome { figure, summary, measured };
        assert!(!outcome.passed());
        assert!(
            outcome.summary.shapes.iter().all(|shape| shape.verdict == Verdict::Unknown),
            "{:?}",
            outcome.summary.shapes
        );
        assert!(outcome.section_html().contains("Some runs failed the checks"));
    }

    #[test]
    fn a_figure_with_a_disturbed_point_gives_no_verdict_and_crosses_it_out() {
        let figure = find("paxflow-2").unwrap();
        let (experiment, _) = figure.experiment.unwrap();
        let mut measure = Computed { disturbed: Some("PaxFlow, snapshot reads"), ..Computed::default() };
        let points = experiment.points(Size::Quick, 2).unwrap();
        let measured = interleaved(&points, 2, experiment.with_ceiling, &mut measure).unwrap();
        let summary = experiment.summary(&measured);
        assert!(summary.shapes.iter().all(|shape| shape.verdict == Verdict::Unknown), "{:?}", summary.shapes);
        let why = "no verdict: PaxFlow, snapshot reads at 1, the machine: disturbed: others used 0.80 cores";
        assert!(summary.shapes[0].ours.contains(why), "{:?}", summary.shapes[0]);
        assert_eq!(summary.plots[0].series[2].disturbed, [1.0, 2.0]);
        let outcome = Outcome { figure, summary, measured };
        assert!(outcome.passed(), "the data are sound all the same");
        let json = outcome.json(Size::Quick, &Host::look());
        assert_eq!(json["shapes"][0]["verdict"], "unknown");
        assert!(json["runs"].to_string().contains("\"state\":\"disturbed\""));
        insta::assert_snapshot!(verdicts(&[outcome]).to_string());
    }

    #[test]
    fn every_figure_logs_as_the_product_does_unless_its_paper_did_not() {
        for figure in &FIGURES {
            let Some((experiment, _)) = figure.experiment else { continue };
            assert!(!experiment.log.paper.is_empty(), "{}", figure.id);
            for point in experiment.points(Size::Quick, 2).unwrap() {
                let conditions = point.point.conditions();
                assert_eq!(conditions.durability, experiment.log.durability.to_string(), "{}", figure.id);
                let log = match figure.paper() {
                    Paper::FwKv => "no log",
                    Paper::Regions => "logged and given to the system",
                    _ => "logged and synced",
                };
                assert!(conditions.log.starts_with(log), "{}: {conditions:?}", figure.id);
            }
        }
    }

    #[test]
    fn the_share_of_the_ceiling_is_of_the_same_turn() {
        let outcome = computed("ours-ceiling");
        let plot = &outcome.summary.plots[0];
        assert_eq!(plot.series[0].at(0.0).map(si).as_deref(), Some("10.2"));
        assert_eq!(plot.series[1].name, "2 threads");
    }

    #[test]
    fn nonsense_is_refused_with_what_there_is() {
        let refusal = |name: &str| chosen(&[name.to_owned()]).unwrap_err().to_string();
        assert!(
            refusal("nope").contains("there is no figure 'nope'") && refusal("nope").contains("calvin-5")
        );
        let missing = refusal("calvin-disk");
        assert!(missing.contains("needs") && missing.contains("a store larger than memory"), "{missing}");
        assert!(refusal("calvin-1").contains("nothing to measure"));
        let all = chosen(&["all".to_owned()]).unwrap();
        assert!(all.len() > 3 && all.iter().all(|(figure, _)| figure.experiment.is_some()));
        let one = chosen(&["calvin-5".to_owned(), "calvin-3".to_owned(), "calvin-5".to_owned()]).unwrap();
        assert_eq!(one.iter().map(|(figure, _)| figure.id).collect::<Vec<_>>(), ["calvin-3", "calvin-5"]);
    }

    #[test]
    fn an_unwritable_directory_is_refused_before_anything_runs() {
        let directory = tempfile::tempdir().unwrap();
        let fine = RunArgs {
            names: vec!["calvin-5".to_owned()],
            quick: true,
            repetitions: None,
            full: false,
            out: directory.path().to_owned(),
            json: None,
            data_dir: None,
            seed: 1,
            options: OptionArgs::default(),
        };
        let nowhere = || PathBuf::from("/proc/no/such");
        for (args, said) in [
            (RunArgs { out: nowhere(), ..fine.clone() }, "--out /proc/no/such"),
            (RunArgs { json: Some(nowhere()), ..fine.clone() }, "--json /proc/no/such"),
            (RunArgs { data_dir: Some(nowhere()), ..fine.clone() }, "--data-dir /proc/no/such"),
        ] {
            let refusal = run_figures(&args).unwrap_err().to_string();
            assert!(refusal.contains(said), "{refusal}");
        }
    }

    #[test]
    fn files_are_written_for_each_figure() {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path()).unwrap();
        let outcome = computed("paxflow-2");
        outcome.write(directory.path(), Size::Quick, &Host::look()).unwrap();
        for name in ["index.html", "paxflow-2.svg", "paxflow-2.json"] {
            assert!(directory.path().join(name).exists(), "{name}");
        }
        let printed = verdicts(&[outcome]).wrapped().to_string();
        assert!(printed.contains("paxflow-2") && printed.contains("below"), "{printed}");
    }

    #[test]
    fn the_list_names_what_runs_and_what_is_missing() {
        let list = list_json();
        let figures = list["figures"].as_array().unwrap();
        assert_eq!(figures.len(), FIGURES.len());
        let of = |name: &str| figures.iter().find(|figure| figure["name"] == name).unwrap();
        let of_disk = of("calvin-disk")["missing"].as_array().unwrap();
        assert_eq!(of_disk.last().unwrap(), "a store larger than memory");
        assert!(of("calvin-disk")["runs"].is_null() && of("regions-f2")["runs"].is_string());
        assert!(of("qstore-6")["runs"].is_string() && of("calvin-6")["runs"].is_string());
    }
}
