//! Fuzz targets: tests that run on inputs drawn from a seed, for as long as they are given.
//!
//! A target is an ordinary test whose name begins with `fuzz_` and that calls [`target`]. `cargo test` runs it for a fixed
//! number of rounds, so it is a regression test of the same cost everywhere; `cargo xtask fuzz` sets [`SECONDS`] and
//! [`RECORD`] and runs it on new seeds for a given time. A round draws all it does from its seed, so the
//! number alone reproduces it:
//!
//! ```text
//! ORDAIN_FUZZ_SEED=17 cargo test -p ordain-resp --test session fuzz_sessions
//! ```
//!
//! A round that panics fails the test and names its seed. A round that ends the process (a signal, an abort) leaves its
//! seed in the record, where `cargo xtask fuzz` finds it. A round that does not end within [`ROUND_LIMIT`] is a stall: a
//! watchdog names its seed and aborts.

mod golden;
mod random;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

pub use golden::{damage_each, golden};
pub use random::Random;

/// Names the environment variable with the seconds for which each target runs on new seeds.
pub const SECONDS: &str = "ORDAIN_FUZZ_SECONDS";
/// Names the environment variable with the only seed to run.
pub const SEED: &str = "ORDAIN_FUZZ_SEED";
/// Names the environment variable with the first of the seeds; 0 without it.
pub const FROM: &str = "ORDAIN_FUZZ_FROM";
/// Names the environment variable with the directory in which each target records the seed under way.
pub const RECORD: &str = "ORDAIN_FUZZ_RECORD";

/// The time after which a round counts as stalled. Rounds take milliseconds; builds without optimisation on a busy machine
/// take longer.
pub const ROUND_LIMIT: Duration = Duration::from_secs(60);

/// The stage that a target shares with its watchdog, in place of a seed, between rounds and after the last.
const IDLE: u64 = u64::MAX;

/// Runs a target: `rounds` seeds, or as the environment says.
///
/// # Panics
/// If the body does, or if an environment variable is not what it should be.
pub fn target(name: &str, rounds: u64, mut body: impl FnMut(&mut Source)) {
    if let Some(seed) = number(SEED) {
        return round(name, seed, &mut body);
    }
    let record = std::env::var_os(RECORD).map(|directory| PathBuf::from(directory).join(name));
    let from = number(FROM).unwrap_or(0);
    let until = number(SECONDS).map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let watchdog = Watchdog::start(name);
    let mut seed = from;
    loop {
        let is_over = match until {
            Some(until) => Instant::now() >= until,
            None => seed - from >= rounds,
        };
        if is_over {
            break;
        }
        note(record.as_ref(), &format!("{seed}\n"));
        watchdog.watch(seed);
        round(name, seed, &mut body);
        seed += 1;
    }
    watchdog.watch(IDLE);
    note(record.as_ref(), &format!("done {}\n", seed - from));
    println!("fuzz target {name}: {} seeds from {from} on", seed - from);
}

fn round(name: &str, seed: u64, body: &mut impl FnMut(&mut Source)) {
    let _named = Named { name, seed };
    body(&mut Source::new(seed));
}

/// Says which seed it was when a round panics.
struct Named<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz target {} failed: {SEED}={} reproduces it", self.name, self.seed);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a whole number, not `{text}`")))
}

fn note(record: Option<&PathBuf>, text: &str) {
    if let Some(record) = record {
        fs::write(record, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", record.display()));
    }
}

/// A thread that ends the process when a round takes too long.
struct Watchdog {
    seed: Arc<AtomicU64>,
}

impl Watchdog {
    fn start(name: &str) -> Watchdog {
        let seed = Arc::new(AtomicU64::new(IDLE));
        let (weak, name) = (Arc::downgrade(&seed), name.to_string());
        std::thread::spawn(move || {
            let mut last = (IDLE, Instant::now());
            while let Some(seed) = weak.upgrade().map(|seed| seed.load(Ordering::Relaxed)) {
                if seed == IDLE || seed != last.0 {
                    last = (seed, Instant::now());
                } else if last.1.elapsed() > ROUND_LIMIT {
                    eprintln!("fuzz target {name} stalled: {SEED}={seed} reproduces it");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Watchdog { seed }
    }

    fn watch(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
    }
}

/// Draws what a round does from its seed.
pub struct Source {
    random: Xoshiro256PlusPlus,
}

impl Source {
    /// The source of a seed.
    pub fn new(seed: u64) -> Source {
        Source { random: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// Any 64-bit number, each alike.
    pub fn number(&mut self) -> u64 {
        self.random.random()
    }

    /// A number of the range. An empty range gives its start.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        if range.is_empty() { range.start } else { self.random.random_range(range) }
    }

    /// Whether something happens that does so once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.within(0..times) == 0
    }

    /// One of the choices.
    ///
    /// # Panics
    /// Without a choice.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.within(0..choices.len())]
    }

    /// Bytes of any value, `range` many.
    pub fn bytes(&mut self, range: Range<usize>) -> Vec<u8> {
        let len = self.within(range);
        (0..len).map(|_| self.random.random()).collect()
    }

    /// An integer near a bound that code is likely to get wrong, or any small one.
    pub fn edge(&mut self) -> i64 {
        let bases = [0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 53, i64::MAX, i64::MIN];
        let base: i64 = *self.pick(&bases);
        let near = base.wrapping_add(self.within(0..5) as i64 - 2);
        if self.once_in(3) { near.wrapping_neg() } else { near }
    }

    /// Changes some bytes as damage or an attacker would: flips, overwrites, cuts, doubles or inserts.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.within(1..5) {
            let at = self.within(0..bytes.len());
            let end = (at + self.within(1..9)).min(bytes.len());
            match self.within(0..6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.within(0..8),
                1 if at < bytes.len() => bytes[at] = *self.pick(&[0, 1, 0x7f, 0x80, 0xff]),
                2 => bytes.truncate(at),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => drop(bytes.drain(at..end)),
                _ => {
                    let noise = self.bytes(1..9);
                    bytes.splice(at..at, noise);
                }
            }
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_a_seed_draws_the_same_again() {
        target("a_seed_draws_the_same_again", 100, |source| {
            let seed = source.number();
            let draw = |mut source: Source| {
                let mut bytes = source.bytes(0..50);
                source.damage(&mut bytes);
                (bytes, source.edge(), source.number())
            };
            assert_eq!(draw(Source::new(seed)), draw(Source::new(seed)));
        });
    }

    #[test]
    #[should_panic(expected = "seed 3")]
    fn a_round_that_fails_fails_the_target() {
        let mut rounds = 0;
        target("a_round_that_fails", 10, |_| {
            assert!(rounds < 3, "seed {rounds}");
            rounds += 1;
        });
    }
}
