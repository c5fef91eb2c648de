//! Questions of ours, which no paper asks.

use std::sync::Arc;

use ordain_engines::registry::{Engine, Make, engines};
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::Shape;
use super::experiment::{Experiment, LINEAR, Line, PICTURE, Picture, Values};
use crate::figures::Measured;
use crate::plot::Series;

fn share(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.share_of_ceiling.unwrap_or(f64::NAN) * 100.0)
}

/// The base of both figures.
const SHARES: Experiment = Experiment {
    x: ("theta", "", LINEAR),
    setting: |size, theta, _| {
        let records = size.records(1_000_000);
        let distribution = Distribution::Zipfian { theta };
        let parameters =
            Parameters { records, distribution, ops_per_txn: 16, writes_per_txn: 8, ..Parameters::default() };
        Ok(Arc::new(Ycsb::new(parameters)?))
    },
    with_ceiling: true,
    is_ours: true,
    plots: &[Picture { y: ("share of plain accesses", "%", LINEAR), series: share, ..PICTURE }],
    notes: &[CEILING_NOTE],
    ..Experiment::PLAIN
};
const CEILING_NOTE: &str = "The ceiling is the same record accesses by plain loops over the same tables, prefetched, with no client \
                            that asks or is answered; it was measured beside every point. It rises with skew, because hot records \
                            stay in the cache, so that the share falls where throughput does not.";

/// Clients of an engine that executes first and agrees afterwards: of more the most lose a hot record to another one, and try again.
const AGREEING: usize = 100;
const AGREEING_NOTE: &str = "The deterministic engines have 2,000 clients, of which they make batches; the others have 100, as with more \
                             under way most attempts at the hot records fail.";

/// The cost of transactions: throughput as a share of plain accesses to the same records.
pub static CEILING: Experiment = Experiment {
    title: "Throughput as a share of the ceiling",
    subtitle: "YCSB, 16 operations, half of them writes, one node; clients included",
    values: Values::At(&[0.0, 0.8, 0.99]),
    lines: |cores| {
        let one = Line::node("1 thread", 1);
        if cores > 1 { vec![one, Line::node(format!("{cores} threads"), cores)] } else { vec![one] }
    },
    shapes: |m| {
        let must = "the share does not collapse with skew: within 60% of its best";
        m.lines().into_iter().map(|line| Shape::flat(must, &share(m, line), 0.6)).collect()
    },
    ..SHARES
};

/// The default engine's throughput over that of the fastest engine with its level.
fn default_over_fastest(m: &Measured, theta: f64) -> Option<f64> {
    let default = Engine::default();
    let of_level = engines().filter(|engine| engine.info().level.starts_with(default.info().level));
    let fastest = of_level.filter_map(|engine| m.clock(engine.name()).at(theta)).reduce(f64::max)?;
    Some(m.clock(default.name()).at(theta)? / fastest)
}

/// Every engine on one workload.
pub static ENGINES: Experiment = Experiment {
    title: "Every engine as a share of the ceiling",
    subtitle: "YCSB, 16 operations, half of them writes, one node of one thread; clients included",
    values: Values::At(&[0.0, 0.8]),
    lines: |_| {
        let line = |engine: Engine| {
            let line = Line::node(engine.name(), 1).by(engine.name());
            match engine.make() {
                Make::Deterministic(_) => line,
                Make::Commit(_) => Line { clients: AGREEING, ..line },
            }
        };
        engines().map(line).collect()
    },
    notes: &[CEILING_NOTE, AGREEING_NOTE],
    shapes: |m| {
        let of = |theta| {
            let must = format!("theta {theta}: the default engine over the fastest one with its level");
            Shape::at_least(must, default_over_fastest(m, theta), 0.85)
        };
        [0.0, 0.8].map(of).into()
    },
    ..SHARES
};

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict::{Below, Holds};
    use super::*;
    use crate::plot::testing;

    #[test]
    fn the_default_engine_is_held_against_the_fastest_with_its_level() {
        let of = |rates: [f64; 3]| {
            let names = [Engine::default().name(), "no-wait", "walter"];
            let run = |(name, rate): (&str, f64)| (name.to_owned(), 0.8, testing::run("e", 1, rate, true));
            let runs = names.into_iter().zip(rates).map(run).collect();
            let summary = ENGINES.summary(&Measured { runs, ..Measured::default() });
            summary.shapes[1].verdict
        };
        assert_eq!(of([9.0, 10.0, 20.0]), Holds, "the last one promises less");
        assert_eq!(of([8.0, 10.0, 1.0]), Below);
    }
}
