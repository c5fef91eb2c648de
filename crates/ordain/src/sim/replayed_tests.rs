//! Replays in the order of stamps with every other check switched off: they find what changes answers or records, and nothing else.

use ordain_checker::ViolationKind;
use ordain_engines::registry::{Engine, Make};
use ordain_model::args::encode;
use ordain_model::{Call, Db, ProcedureId, Random};
use ordain_node::procedures;

use super::mixed::CommitMix;
use super::replayed::Replayed;
use super::tests::args;
use super::*;

/// Runs a seed that is held to its replay alone.
fn replay(flags: &[&str], seed: u64, workload: &mut dyn Workload) -> (Report, Replayed) {
    let always = ["--unasked", "--clients-speak", "calls"];
    let args = args(&[&always, flags].concat());
    let engine: Engine = args.engine.parse().unwrap();
    let Make::Commit(commit) = engine.make() else { panic!("{engine} is no engine of the commit family") };
    let options = engine.options(args.options.given.iter()).unwrap();
    let mut system = CommitSystem::new(commit, options, &args, seed).unwrap();
    let replayed = system.replays().alone();
    let nodes = args.partitions * args.replicas;
    let config = spoken_to_commit(&args, seed, Config { nodes, ..config(&args, seed) });
    let report = run_seed(&config, system, workload, None);
    (report, replayed.take())
}

/// Sets and reads of a few registers. A set looks at nothing.
struct Registers {
    set: ProcedureId,
    get: ProcedureId,
    last: u64,
}

impl Registers {
    fn new() -> Registers {
        let find = |name| procedures::all().find(name).unwrap();
        Registers { set: find("set"), get: find("get"), last: 0 }
    }
}

impl Workload for Registers {
    fn next(&mut self, random: &mut Random) -> (Call, Vec<u8>) {
        let key = [random.index(4) as u8];
        self.last += 1;
        match random.chance(700_000) {
            true => (Call::new(self.set, Db(3)), encode(&[&key[..], &self.last.to_le_bytes()])),
            false => (Call::new(self.get, Db(3)), encode(&[&key[..]])),
        }
    }
}

#[test]
fn a_sound_run_is_replayed_whole() {
    let mut sum = Replayed::default();
    for engine in ["timestamp", "mvcc", "maat"] {
        for shape in [["1", "1"], ["2", "1"], ["2", "3"]] {
            let flags =
                ["--engine", engine, "--partitions", shape[0], "--replicas", shape[1], "--txns", "300"];
            for seed in 0..2 {
                let of_mix = replay(&flags, seed, &mut CommitMix::default());
                for (report, of) in [of_mix, replay(&flags, seed, &mut Registers::new())] {
                    assert!(report.verdict.is_ok(), "{flags:?}: {report}");
                    sum.run += of.run;
                    sum.left += of.left;
                    sum.tried += of.tried;
                    sum.unjudged += of.unjudged;
                }
            }
        }
    }
    assert!(sum.run > 1_300 && sum.tried > 1_000 && sum.left > 0, "{sum:?}");
    assert_eq!(sum.unjudged, 0, "{sum:?}");
}

/// Demands that a replay alone finds a bug in one of a few seeds.
fn demand_found(engine: &str, bug: &str, mut workload: impl FnMut() -> Box<dyn Workload>) {
    let flags = ["--engine", engine, "--partitions", "2", "--plant", bug];
    let is_found = |seed| {
        let verdict = replay(&flags, seed, &mut *workload()).0.verdict;
        let kind = verdict.err().map(|violation| violation.kind);
        matches!(kind, Some(ViolationKind::WrongAnswer | ViolationKind::WrongState))
    };
    assert!((0..10).any(is_found), "{engine}: no replay finds {bug}");
}

#[test]
fn planted_bugs_are_found_by_replays_alone() {
    for engine in ["timestamp", "mvcc"] {
        for bug in ["grant-lock-early", "forget-intention", "skip-transaction"] {
            demand_found(engine, bug, || Box::new(CommitMix::default()));
        }
        // Only blind writes of one record may commit in another order than that of stamps.
        demand_found(engine, "install-late", || Box::new(Registers::new()));
    }
}
