//! The suite: one function a module, each of which holds clusters of a shape to something.
//!
//! What a function needs of a cluster it opens afresh, so that none depends on what another has left behind.

mod keyspace;
mod limits;
mod sight;

use std::ops::Range;

use ordain_engines::registry;
use ordain_model::{OptionKind, OptionValue};

use crate::cluster::{Kind, Shape};
use crate::drawn;
use crate::transcript::Transcript;

pub use keyspace::keyspace;
pub use limits::{limits, memory};
pub use sight::sight;

/// The seeds of drawn programs in CI.
const SEEDS: Range<u64> = 0..12;
/// Names the environment variable with other seeds, as `A..B`.
const OTHER_SEEDS: &str = "ORDAIN_CONFORMANCE_SEEDS";
/// The steps of a drawn program.
const STEPS: usize = 80;

/// The seeds to run.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var(OTHER_SEEDS) else { return SEEDS };
    let range = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    range.unwrap_or_else(|| panic!("{OTHER_SEEDS} is a range of seeds as 0..100, not {text:?}"))
}

/// Drawn programs beside the reference: commands of the whole table in pipelines, blocks, scripts and interactive
/// transactions.
///
/// # Errors
/// A program that is answered differently, cut down.
pub fn programs(shape: &Shape) -> Result<(), String> {
    drawn::hold(seeds(), STEPS, &|| shape.open())
}

/// The transcripts of a folder, each on a cluster of its own.
///
/// # Errors
/// The places at which the cluster did something else.
pub fn transcripts(folder: &str, shape: &Shape) -> Result<(), String> {
    let mut failures = String::new();
    for transcript in Transcript::folder(folder) {
        if let Err(failure) = transcript.run(&mut *shape.open()) {
            failures.push_str(&format!("\n{folder}/{failure}"));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// What some shapes do not cover: engines, shapes that each of them must be tried in, and values of options.
pub fn uncovered(shapes: &[Shape]) -> Vec<String> {
    let mut missing = Vec::new();
    for engine in registry::engines() {
        let of: Vec<&Shape> = shapes.iter().filter(|shape| shape.engine() == engine).collect();
        for kind in [Kind::Single, Kind::Partitioned, Kind::Sharded, Kind::Replicated] {
            let can = match kind {
                Kind::Single | Kind::Sharded | Kind::Partitioned => true,
                Kind::Replicated => engine.can().replication.len() > 1,
            };
            if can && !of.iter().any(|shape| shape.is_like(kind)) {
                missing.push(format!("{engine}: {kind:?}"));
            }
        }
    }
    for info in registry::all_options() {
        let OptionKind::Name { names, .. } = info.kind else { continue };
        let is_set = |name: &'static str| {
            let mut set = shapes.iter().map(Shape::options).filter(|options| options.has(info));
            set.any(|options| options.value(info) == OptionValue::Name(name))
        };
        let unset = names.iter().copied().filter(|name| !is_set(name));
        missing.extend(unset.map(|name| format!("{}={name}", info.name)));
    }
    missing
}

/// Holds engines to the suite: a line `name = shape;` makes a module of tests, one for each part of the suite. `shapes()` lists
/// them all.
#[macro_export]
macro_rules! conforms {
    ($($name:ident = $shape:expr;)*) => {
        /// Every shape that is held to the suite, by its name.
        fn shapes() -> Vec<(&'static str, $crate::cluster::Shape)> {
            vec![$((stringify!($name), $shape)),*]
        }

        $(mod $name {
            use super::*;

            $crate::conforms! { @transcripts $shape; commands sessions interactive expiry keyspace protocols }
            $crate::conforms! { @parts $shape; programs keyspace limits memory sight }
        })*
    };
    (@transcripts $shape:expr; $($folder:ident)*) => {
        mod transcripts {
            use super::*;

            $(#[test]
            fn $folder() {
                let held = $crate::suite::transcripts(stringify!($folder), &$shape);
                held.unwrap_or_else(|failure| panic!("{failure}"));
            })*
        }
    };
    (@parts $shape:expr; $($part:ident)*) => {
        $(#[test]
        fn $part() {
            $crate::suite::$part(&$shape).unwrap_or_else(|failure| panic!("{failure}"));
        })*
    };
}
