//! The FW-KV paper's figures of YCSB (fwkv.md, section 7): transactions read two records, or read and change two.
//!
//! On the paper's 20 nodes two keys are on two nodes 95 times of a hundred, so they are here as often. Keys have 8 bytes instead of
//! four, values 12.

use std::sync::Arc;
use std::time::Duration;

use ordain_workload::Workload;
use ordain_workload::ycsb::Parameters;

use super::experiment::{Experiment, LINEAR, Line, PICTURE, Picture, Values};
use super::psi::{
    ABORTS, CLIENTS, DELAYS, ENGINES, FWKV, HEARS, NODES, NOTE, PSI, Settings, TWO_PHASE, WALTER, aborts,
    aborts_of_both, add_ratios, add_ratios_of_aborts, collected, in_time_and_late, keys, late, line, lowest,
    no_less, rate, waits_for_messages, walter_aborts_more, with_papers, with_spread,
};
use super::qstore::ycsb;
use super::summary::or_not;
use super::verdict::Claim;
use super::{Measured, Shape, Size};
use crate::plot::{Scale, Series, si};

/// The share of transactions whose keys are on two nodes of the paper's 20.
const ACROSS: f64 = 0.95;

/// Transactions on so many keys of the paper's, of which a share only reads.
pub fn two_keys(
    line: &Line,
    papers_keys: u64,
    clients: usize,
    read_only: f64,
) -> anyhow::Result<Arc<dyn Workload>> {
    ycsb(Parameters {
        records: keys(papers_keys, clients),
        record_bytes: 12,
        ops_per_txn: 2,
        writes_per_txn: 2,
        read_only,
        partitions: line.grid.nodes.into(),
        multi_partition: ACROSS,
        partitions_per_txn: 2,
        ..Parameters::default()
    })
}

/// The numbers of nodes of Figure 5.
const SIZES: [f64; 3] = [2.0, 4.0, 6.0];
/// The clients of the most of them: the keys stay, as in the paper, while nodes are added.
const CLIENTS_MAX: usize = CLIENTS * SIZES[2] as usize;

/// A part of Figure 5.
struct Part {
    name: &'static str,
    keys: u64,
    read_only: f64,
}

const FEW_20: Part = Part { name: "50 K keys, 20% read-only", keys: 50_000, read_only: 0.2 };
const MANY_20: Part = Part { name: "500 K keys, 20% read-only", keys: 500_000, read_only: 0.2 };
const FEW_50: Part = Part { name: "50 K keys, 50% read-only", keys: 50_000, read_only: 0.5 };
const MANY_50: Part = Part { name: "500 K keys, 50% read-only", keys: 500_000, read_only: 0.5 };
const PARTS: [Part; 4] = [FEW_20, MANY_20, FEW_50, MANY_50];

fn of_part(engine: &str, part: &Part) -> String {
    format!("{engine}, {}", part.name)
}

/// The throughput of one line over that of another, in each part.
fn over(measured: &Measured, settings: Settings, one: &str, other: &str) -> Vec<Series> {
    let ratio = |part| settings.paired(measured, &of_part(one, part), &of_part(other, part), rate);
    PARTS.iter().map(ratio).collect()
}

/// FW-KV and Walter over the two-phase commit.
fn over_2pc(measured: &Measured, settings: Settings) -> Vec<Series> {
    [FWKV, WALTER].map(|engine| over(measured, settings, engine, TWO_PHASE)).concat()
}

/// FW-KV over Walter in a part, where it is lowest.
fn gap(measured: &Measured, part: &Part) -> String {
    let settings = Settings::beside(measured);
    lowest(&[settings.paired(measured, &of_part(FWKV, part), &of_part(WALTER, part), rate)])
}

/// Requires that throughput grows nearly as the nodes do.
fn grows(measured: &Measured, settings: Settings, engine: &str) -> Shape {
    /// The share of what so many times the nodes would do.
    const NEARLY: f64 = 0.8;
    let growth = |part: &Part| {
        let rates = measured.clock(&settings.line(&of_part(engine, part)));
        Some(rates.at(SIZES[2])? / rates.at(SIZES[0])?)
    };
    let least = PARTS.iter().filter_map(growth).reduce(f64::min);
    let must = format!("{engine} is nearly linear: 6 nodes over 2 in the part where they are least");
    Shape::at_least(settings.must(&must), least, NEARLY * SIZES[2] / SIZES[0])
}

/// The requirements of Figure 5.
fn by_nodes(m: &Measured, settings: Settings) -> Vec<Shape> {
    let of_engine =
        |engine| PARTS.iter().flat_map(move |part| aborts(m, &settings.line(&of_part(engine, part))).points);
    let most = [FWKV, WALTER].into_iter().flat_map(of_engine).map(|(_, percent)| percent).reduce(f64::max);
    let few = settings.must("aborts of FW-KV and Walter, percent at the most");
    let near = settings.must("FW-KV is within 25% of Walter: the lowest ratio");
    let far = settings.must("both are far above 2PC: the lowest ratio");
    vec![
        grows(m, settings, FWKV),
        grows(m, settings, WALTER),
        no_less(near, &over(m, settings, FWKV, WALTER), 0.75),
        no_less(far, &over_2pc(m, settings), 2.5),
        Shape::number(few, Claim::AtMost(10.0), most),
    ]
}

const fn of(has: fn(&str) -> bool, suffix: &'static str) -> Picture {
    Picture { suffix, has, ..PICTURE }
}

/// Figure 5: nodes.
pub static FIGURE_5: Experiment = Experiment {
    title: "YCSB by nodes",
    subtitle: "2 keys read, or read and changed; 5 clients a node; 15,000 and 150,000 keys stand for 50 K and 500 K",
    x: ("nodes", "", LINEAR),
    values: Values::At(&SIZES),
    lines: |_| {
        let of_part = |(number, part): (usize, &'static Part)| {
            let line = move |(name, engine): (&str, &str)| {
                line(of_part(name, part), engine, NODES).knob(number as f64)
            };
            ENGINES.map(line).into_iter().flat_map(with_papers)
        };
        PARTS.iter().enumerate().flat_map(of_part).collect()
    },
    setting: |_, nodes, line| {
        let Part { keys, read_only, .. } = PARTS[line.knob as usize];
        line.grid.nodes = nodes as u16;
        line.clients = CLIENTS * nodes as usize;
        two_keys(line, keys, CLIENTS_MAX, read_only)
    },
    plots: &[
        of(|line| line.contains(FEW_20.name), ", 50 K keys, 20% read-only"),
        of(|line| line.contains(MANY_20.name), ", 500 K keys, 20% read-only"),
        of(|line| line.contains(FEW_50.name), ", 50 K keys, 50% read-only"),
        of(|line| line.contains(MANY_50.name), ", 500 K keys, 50% read-only"),
        Picture { has: |line| !line.starts_with(TWO_PHASE), ..ABORTS },
    ],
    paper: &[
        ("FW-KV over Walter, 50 K keys, 20% read-only, lowest", "0.80 (section 5.1)", |m| gap(m, &FEW_20)),
        ("FW-KV over Walter, 500 K keys, 20% read-only, lowest", "0.84 (section 5.1)", |m| gap(m, &MANY_20)),
        ("FW-KV over Walter, 50 K keys, 50% read-only, lowest", "0.85 (section 5.1)", |m| gap(m, &FEW_50)),
        ("FW-KV over Walter, 500 K keys, 50% read-only, lowest", "1 (section 5.1)", |m| gap(m, &MANY_50)),
        ("FW-KV over 2PC, lowest", "more than 3 (section 5.1)", |m| {
            lowest(&over(m, Settings::beside(m), FWKV, TWO_PHASE))
        }),
        ("Walter over 2PC, lowest", "more than 3 (section 5.1)", |m| {
            lowest(&over(m, Settings::beside(m), WALTER, TWO_PHASE))
        }),
        ("aborts of FW-KV and Walter with the most nodes and 50 K keys", "below 10% (section 5.1)", |m| {
            let line = |engine| Settings::beside(m).line(&of_part(engine, &FEW_20));
            let percent = |engine| aborts(m, &line(engine)).at(SIZES[2]);
            [FWKV, WALTER].map(|engine| or_not(percent(engine), |it| format!("{it:.1}%"))).join(", ")
        }),
    ],
    shapes: |m| {
        let all = Settings::of(m).into_iter().flat_map(|settings| by_nodes(m, settings));
        all.chain([waits_for_messages(m)]).collect()
    },
    notes: &[
        NOTE,
        "What only reads is confirmed by the partitions that it has read, with all three engines, since one may have lost its \
         leader: a round of messages, which the paper's FW-KV and Walter do without and 2PC has in the paper too.",
        "Here Walter and 2PC read both keys at once, as clients send whole transactions. An update of FW-KV reads the first alone, since that \
         fixes its snapshot: a round of messages more. The paper's clients read one key after the other with each engine.",
    ],
    more: |figure, m, summary| {
        let all = Settings::of(m).into_iter();
        let ratios = all.clone().flat_map(|settings| over(m, settings, FWKV, WALTER)).collect();
        add_ratios(figure, summary, ": FW-KV over Walter", ratios);
        add_ratios(
            figure,
            summary,
            ": both over 2PC",
            all.flat_map(|settings| over_2pc(m, settings)).collect(),
        );
    },
    ..PSI
};

/// The numbers of keys of Figures 6 and 7, the paper's.
const KEYS: [f64; 3] = [50_000.0, 100_000.0, 500_000.0];

/// The time of measuring where what counts happens to few transactions.
fn rare(size: Size) -> Duration {
    size.measure() * 5
}

/// Clients of four nodes.
pub const ON_FOUR: usize = CLIENTS * NODES as usize;

fn of_keys(papers: f64) -> String {
    format!("{} keys", si(papers))
}

fn collected_of(measured: &Measured, settings: Settings, papers: f64) -> Series {
    measured.series(&settings.line(&of_keys(papers)), collected)
}

/// The requirements of Figure 6.
fn by_keys_and_updates(m: &Measured, settings: Settings) -> Vec<Shape> {
    let falls = |percent: f64| {
        let of = |papers: &f64| Some((*papers, collected_of(m, settings, *papers).at(percent)?));
        let points = KEYS.iter().filter_map(of).collect();
        let by_keys = Series::measured(format!("{percent}% read-only"), points);
        Shape::falls(settings.must(&format!("falls with more keys, {percent}% read-only")), &by_keys, 0.5)
    };
    let rises = settings.must("rises with the share of updates, 50 K keys");
    let mut shapes = vec![falls(20.0), falls(50.0), falls(80.0)];
    shapes.push(Shape::falls(rises, &collected_of(m, settings, KEYS[0]), 0.9));
    shapes
}

/// Figure 6: anti-dependencies.
pub static FIGURE_6: Experiment = Experiment {
    title: "Anti-dependencies that an update collects",
    subtitle: "FW-KV, 4 nodes, 2 keys read, or read and changed; a fifth of the paper's keys, for a fifth of its clients",
    x: ("read-only transactions", "%", LINEAR),
    values: Values::At(&[20.0, 50.0, 80.0]),
    lines: |_| {
        let line = |papers: f64| line(of_keys(papers), "fwkv", NODES).knob(papers);
        KEYS.map(line).into_iter().flat_map(with_papers).collect()
    },
    setting: |_, percent, line| two_keys(line, line.knob as u64, ON_FOUR, percent / 100.0),
    measure: rare,
    plots: &[Picture {
        y: ("readers that an update took along", "", LINEAR),
        series: |m, line| m.series(line, collected),
        ..PICTURE
    }],
    paper: &[
        ("500 K keys", "nearly 0 (section 5.1)", |m| {
            let series = collected_of(m, Settings::beside(m), KEYS[2]);
            series
                .points
                .iter()
                .map(|(x, _)| format!("{} at {x}%", with_spread(&series, *x)))
                .collect::<Vec<_>>()
                .join(", ")
        }),
        ("50 K keys, 50% over 80% read-only", "a sharp rise (section 5.1)", |m| {
            let series = collected_of(m, Settings::beside(m), KEYS[0]);
            or_not(series.at(50.0).zip(series.at(80.0)), |(half, few)| format!("{half:.3} over {few:.3}"))
        }),
    ],
    shapes: |m| {
        let all = Settings::of(m).into_iter().flat_map(|settings| by_keys_and_updates(m, settings));
        all.chain([waits_for_messages(m)]).collect()
    },
    notes: &[
        NOTE,
        "Readers are counted where an update is validated, once at each of its participants, and divided by the updates that committed. \
         Names of readers that are over are dropped, so that an update takes along none but readers under way.",
    ],
    ..PSI
};

/// The requirements of Figure 7.
fn by_lateness(m: &Measured, settings: Settings) -> Vec<Shape> {
    let in_time = [FWKV, WALTER].into_iter().flat_map(|line| aborts(m, &settings.line(line)).points);
    let in_time = in_time.map(|(_, percent)| percent).reduce(f64::max);
    let stays = settings.must("delayed, Walter's aborts do not fall with more keys: within 25%");
    let few = settings.must("not delayed, aborts of both, percent at the most");
    vec![
        walter_aborts_more(m, settings, 1.5),
        Shape::flat(stays, &aborts(m, &settings.line(&late(WALTER, DELAYS[1]))), 0.25),
        Shape::number(few, Claim::AtMost(10.0), in_time),
    ]
}

/// Figure 7: late announcements.
pub static FIGURE_7: Experiment = Experiment {
    title: "Aborts while announcements are late",
    subtitle: "4 nodes, 2 keys read, or read and changed, 20% read-only; a fifth of the keys, for a fifth of the clients",
    x: ("keys of the paper", "", || Scale::Log),
    values: Values::At(&KEYS),
    lines: |_| in_time_and_late(),
    setting: |_, papers, line| two_keys(line, papers as u64, ON_FOUR, 0.2),
    measure: rare,
    plots: &[Picture { suffix: "", ..ABORTS }, Picture { suffix: ": throughput", ..PICTURE }],
    paper: &[
        ("delayed by 1 ms, which is 50 ways", "Walter about twice FW-KV (section 5.1)", |m| {
            aborts_of_both(m, Some(DELAYS[1]))
        }),
        ("delayed by 5 ways", "the paper calls 1 ms a slowdown by 5", |m| aborts_of_both(m, Some(DELAYS[0]))),
        ("not delayed", "comparable, below 10% (section 5.1)", |m| aborts_of_both(m, None)),
    ],
    shapes: |m| {
        let all = Settings::of(m).into_iter().flat_map(|settings| by_lateness(m, settings));
        all.chain([waits_for_messages(m)]).collect()
    },
    notes: &[
        NOTE,
        "An update needs a newer snapshot if a key of its was written while announcements were late: with ten times the keys that is \
         a tenth as likely.",
        HEARS,
    ],
    more: add_ratios_of_aborts,
    ..PSI
};

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;
    use crate::agreement::Agreement;
    use crate::plot::testing;
    use crate::report::Run;

    fn run(line: String, x: f64, rate: f64, agreement: Agreement) -> (String, f64, Run) {
        (line, x, Run { agreement: Some(agreement), ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn figure_5_has_a_line_of_each_engine_in_each_part_and_keeps_its_keys() {
        let points = FIGURE_5.points(Size::Quick, 2).unwrap();
        assert!(points.len() >= 36 && points.len().is_multiple_of(SIZES.len()), "{}", points.len());
        let params = |at: usize, name: &str| {
            let params = points[at].point.workload.params();
            params.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
        };
        let last = points.len() - 1;
        assert_eq!((points[0].point.clients, points[last].point.clients), (10, 30));
        let records = [0, last].map(|at| params(at, "records"));
        assert_eq!(records, [15_000, 150_000].map(|n| Some(ordain_workload::Param::Int(n))));
        assert_eq!(params(0, "multi_partition"), Some(ordain_workload::Param::Real(ACROSS)));
    }

    #[test]
    fn the_papers_throughputs_have_the_papers_shape_and_a_slow_fwkv_has_not() {
        let of = |fwkv: f64, by_six: f64| {
            let mut runs = Vec::new();
            for part in &PARTS {
                for (engine, rate) in [(FWKV, fwkv), (WALTER, 1_000.0), (TWO_PHASE, 300.0)] {
                    runs.push(run(of_part(engine, part), 2.0, rate, Agreement::default()));
                    runs.push(run(of_part(engine, part), 6.0, rate * by_six, Agreement::default()));
                }
            }
            let measured = Measured { runs, ..Measured::default() };
            FIGURE_5.summary(&measured).shapes.iter().map(|shape| shape.verdict).collect::<Vec<_>>()
        };
        use Verdict::{Below, Holds};
        assert_eq!(of(800.0, 2.5)[..5], [Holds; 5]);
        assert_eq!(of(800.0, 2.3)[..5], [Below, Below, Holds, Holds, Holds]);
        assert_eq!(of(740.0, 3.0)[..5], [Holds, Holds, Below, Below, Holds]);
    }

    #[test]
    fn figure_6_falls_with_keys_and_rises_with_updates() {
        let of = |values: [[f64; 3]; 3]| {
            let runs = KEYS.into_iter().zip(values).flat_map(|(papers, values)| {
                [20.0, 50.0, 80.0].into_iter().zip(values).map(move |(x, collected_per_txn)| {
                    run(of_keys(papers), x, 1.0, Agreement { collected_per_txn, ..Agreement::default() })
                })
            });
            let measured = Measured { runs: runs.collect(), ..Measured::default() };
            FIGURE_6.summary(&measured).shapes.iter().map(|shape| shape.verdict).collect::<Vec<_>>()
        };
        use Verdict::{Differs, Holds};
        assert_eq!(of([[0.8, 0.6, 0.2], [0.4, 0.3, 0.1], [0.01, 0.01, 0.01]])[..4], [Holds; 4]);
        assert_eq!(of([[0.1, 0.2, 0.3]; 3])[..4], [Differs; 4]);
    }

    #[test]
    fn figure_7_holds_walters_aborts_against_fwkvs() {
        let of = |walter: [f64; 3]| {
            let lines =
                [(late(WALTER, 50), walter), (late(FWKV, 50), [0.2; 3]), (WALTER.to_owned(), [0.05; 3])];
            let runs = lines.into_iter().flat_map(|(line, shares)| {
                KEYS.into_iter().zip(shares).map(move |(x, share)| {
                    let failed = [("vote_no", share)].into();
                    run(
                        line.clone(),
                        x,
                        1.0,
                        Agreement { attempts_per_txn: 1.0, failed, ..Agreement::default() },
                    )
                })
            });
            let measured = Measured { runs: runs.collect(), ..Measured::default() };
            FIGURE_7.summary(&measured)
        };
        use Verdict::{Below, Differs, Holds};
        let verdicts = |walter| of(walter).shapes.iter().map(|shape| shape.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts([0.4, 0.35, 0.31])[..3], [Holds; 3]);
        assert_eq!(verdicts([0.4, 0.35, 0.29])[..3], [Below, Differs, Holds]);
        assert_eq!(of([0.4; 3]).plots.last().unwrap().series.len(), 1, "what was not measured is left out");
    }
}
