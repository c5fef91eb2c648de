//! Seeds that must be sound, and planted bugs that must be found.

use ordain_engines::registry::Engine;

use super::*;
use ordain_model::{Micros, OptionKind};
use ordain_sim::{Counts, FaultPace, Load, Profile};

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

/// The flags of a run in a storm of faults, unless they name another profile.
pub(super) fn args(flags: &[&str]) -> SimArgs {
    let storm = ["--profile", "storm"];
    let flags = if flags.contains(&"--profile") { flags.to_vec() } else { [&storm, flags].concat() };
    <Cli as clap::Parser>::try_parse_from([&["sim"], &flags[..]].concat()).unwrap().sim
}

pub(super) fn demand_sound(flags: &[&str], seeds: std::ops::Range<u64>) {
    demand_sound_of(&args(flags), seeds);
}

fn demand_sound_of(args: &SimArgs, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let report = simulate(args, seed, None).unwrap();
        assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(args, seed));
        // Besides what clients asked for, a run asks each node for its digest.
        assert!(report.transactions >= args.load.txns(), "only {} requests were made", report.transactions);
    }
}

#[test]
fn faults_hit_leaders_and_nodes_that_catch_up_where_that_is_asked_for() {
    let flags = ["--profile", "steady", "--partitions", "2", "--replicas", "3", "--clients", "16"];
    let faults = ["--faults", "crash", "--fault-every", "20", "--outage-ms", "50", "--txns", "300"];
    let flags = [&flags[..], &faults].concat();
    let count = |more: &[&str], what: &str| {
        let mut found = 0;
        let mut sink = |line: &str| found += usize::from(line.contains(what));
        let report = simulate(&args(&[&flags[..], more].concat()), 0, Some(&mut sink)).unwrap();
        assert!(report.verdict.is_ok(), "{report}");
        found
    };
    let (leader, relapse) = ("leads, and is to be hit", "is to crash while it catches up");
    assert_eq!((count(&[], leader), count(&[], relapse)), (0, 0));
    assert!(count(&["--at-leaders", "100"], leader) > 0);
    assert!(count(&["--relapse", "50"], relapse) > 0);
}

#[test]
fn every_option_reaches_the_roles_and_the_command_that_reproduces_a_seed() {
    let engine: Engine = "qstore".parse().unwrap();
    for info in engine.offers().iter().map(|offer| offer.info) {
        let default = engine.defaults().value(info);
        let value = match info.kind {
            OptionKind::Name { names, .. } => {
                *names.iter().find(|name| **name != default.to_string()).unwrap()
            }
            OptionKind::Bool => "false",
            _ => "17",
        };
        let by_name = format!("{}={value}", info.name);
        let mut doors = vec![["--option".to_owned(), by_name]];
        if info.is_flag {
            doors.push([format!("--{}", info.name), value.to_owned()]);
        }
        for door in doors {
            let args = args(&["--engine", "qstore", &door[0], &door[1]]);
            let system = DeterministicSystem::new(&args, 3).unwrap();
            assert_eq!(system.settings.options.value(info).to_string(), value, "{door:?}");
            let command = reproduce(&args, 3);
            assert!(command.contains(&info.written(value)), "{command}");
        }
    }
    let refused =
        DeterministicSystem::new(&args(&["--option", "execution=speculative"]), 1).err().unwrap().to_string();
    assert!(refused.contains("--execution speculative is not for engine calvin"), "{refused}");
}

#[test]
fn the_command_that_reproduces_a_seed_names_its_profile() {
    for (profile, name) in Profile::ALL {
        let given = args(&["--profile", name]);
        assert_eq!(config(&given, 1).load, Load::of(profile, 1));
        assert!(reproduce(&given, 1).contains(&format!(" --profile {name} ")));
    }
    let default = <Cli as clap::Parser>::try_parse_from(["sim"]).unwrap().sim;
    assert_eq!(default.load.profile, Profile::Steady);
}

/// The shapes of clusters that the profiles are measured on, with an engine.
const SHAPES: [&[&str]; 8] = [
    &[],
    &["--engine", "calvin-paper", "--partitions", "2"],
    &["--engine", "qstore", "--partitions", "2"],
    &["--engine", "qstore", "--replicas", "3"],
    &["--engine", "paxflow", "--partitions", "2"],
    &["--partitions", "2", "--replicas", "3"],
    &["--partitions", "2", "--replicas", "3", "--replication", "async"],
    &["--partitions", "2", "--replicas", "2", "--replication", "async"],
];

/// Runs seeds of a profile on a shape, which must be sound.
fn figures_of(profile: &str, shape: &[&str], seeds: std::ops::Range<u64>) -> Vec<Figures> {
    let args = args(&[&["--profile", profile], shape].concat());
    let figures = seeds.map(|seed| {
        let report = simulate(&args, seed, None).unwrap();
        assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
        report.figures
    });
    figures.collect()
}

fn middle(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut summary = Summary::default();
    figures.iter().for_each(|run| summary.add(run.clone()));
    let [_, middle, _] = summary.spread(|run| Some(of(run))).unwrap();
    middle
}

#[test]
fn steady_seeds_answer_most_requests_in_batches_of_eight_or_more() {
    let (mut faults, mut crashes) = (0, 0);
    for shape in SHAPES {
        let figures = figures_of("steady", shape, 0..5);
        let unknown = middle(&figures, |run| run.unknown_percent);
        let large = middle(&figures, |run| run.large_batches_percent);
        assert!(unknown <= 33.3 && large >= 50.0, "{shape:?}: {unknown}% unknown, {large}% of 8 or more");
        faults += figures.iter().map(|run| run.faults).sum::<u64>();
        crashes += figures.iter().map(|run| run.crashes).sum::<u64>();
    }
    assert!(faults > 8 * 5 * 3 && crashes > 8 * 5, "{faults} faults, {crashes} crashes");
}

#[test]
fn large_seeds_have_batches_of_thousands_of_fragments_and_faults() {
    for shape in [SHAPES[0], SHAPES[2], SHAPES[5]] {
        let figures = figures_of("large", &[shape, &["--shards", "3"]].concat(), 0..5);
        let unknown = middle(&figures, |run| run.unknown_percent);
        assert!(unknown <= 33.3, "{shape:?}: {unknown}% unknown");
        let fragments = figures.iter().map(|run| run.batch_fragments_max).max();
        assert!(fragments > Some(3_000), "{shape:?}: {fragments:?} fragments in the largest batch");
        assert!(figures.iter().any(|run| run.faults > 1), "{shape:?}: no faults");
    }
}

#[test]
fn quiet_seeds_have_one_fault_and_last_for_long() {
    for shape in SHAPES {
        for run in figures_of("quiet", shape, 0..3) {
            assert_eq!(run.faults, 1, "{shape:?}: {run}");
            assert!(run.asked_for > Micros::from_millis(300), "{shape:?}: {run}");
            assert!(run.unknown_percent <= 33.3, "{shape:?}: {run}");
        }
    }
}

#[test]
fn a_run_lasts_for_the_time_that_is_asked_for() {
    for profile in ["steady", "quiet"] {
        let args = args(&["--profile", profile, "--virtual-time", "20", "--replicas", "3"]);
        let report = simulate(&args, 1, None).unwrap();
        assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, 1));
        assert!(report.virtual_time >= Micros(19_000_000), "{profile}: {}", report.virtual_time);
        assert!(report.committed > 1_000, "{profile}: {} committed", report.committed);
        assert!(reproduce(&args, 1).contains(" --virtual-time 20"));
    }
    let both = ["sim", "--virtual-time", "1", "--txns", "5"];
    assert!(<Cli as clap::Parser>::try_parse_from(both).is_err());
}

#[test]
fn each_knob_reaches_the_load_and_the_command_that_reproduces_a_seed() {
    let flags = [
        ("--clients", "7"),
        ("--pipeline", "9"),
        ("--sessions", "30"),
        ("--think-us", "77"),
        ("--wave", "11"),
        ("--rest-ms", "13"),
        ("--fault-every", "17"),
        ("--outage-ms", "19"),
        ("--relapse", "21"),
        ("--at-leaders", "23"),
        ("--checkpoints", "5"),
    ];
    let all: Vec<&str> = flags.iter().flat_map(|(name, value)| [*name, *value]).collect();
    let given = args(&all);
    let load = Load {
        clients: 7,
        pipeline: 9,
        session_chance: 300_000,
        think_us_max: 77,
        wave: 11,
        rest_us: 13_000,
        faults: FaultPace::Every { mean_us: 17_000 },
        outage_us: 19_000,
        relapse_chance: 210_000,
        leader_chance: 230_000,
        ..Load::of(Profile::Storm, 1)
    };
    assert_eq!(config(&given, 1).load, load);
    let command = reproduce(&given, 1);
    for (name, value) in flags {
        assert!(command.contains(&format!(" {name} {value} ")), "{command}");
    }
}

#[test]
fn seeds_with_all_faults_are_sound() {
    demand_sound(&[], 0..60);
}

/// Members that an operator has forgotten, as they had not come to it, and empty ones that join learn of an abort from others.
#[test]
fn an_operator_aborts_what_ends_nodes_and_all_members_agree() {
    for engine in ["calvin", "calvin-paper", "qstore", "paxflow"] {
        let (mut ends, mut operations, mut heeds) = (0, 0, 0);
        for flags in [
            &["--partitions", "2", "--replicas", "3"][..],
            &["--partitions", "2", "--replicas", "3", "--faults", "loss"],
            &["--partitions", "3", "--replicas", "2", "--replication", "async"],
            &[],
        ] {
            let args = args(&[&["--operator", "--engine", engine], flags].concat());
            let report = simulate(&args, 0, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, 0));
            ends += report.counts.ends;
            operations += report.counts.operations;
            heeds += report.counts.heeds;
        }
        assert!(ends > 5 && operations > 3 && heeds > 3, "{engine}: {ends} {operations} {heeds}");
    }
}

/// Sessions over connections that break anywhere: whole pipelines, blocks, watched keys, scripts, functions, interactive
/// transactions, retries over other nodes, expiry, iterations.
#[test]
fn clients_that_speak_bytes_are_answered_rightly() {
    let mut spoken = 0;
    for flags in [
        &["--engine", "calvin"][..],
        &["--engine", "calvin-paper", "--partitions", "2"],
        &["--engine", "paxflow", "--partitions", "2", "--reads", "session"],
        &["--engine", "qstore", "--replicas", "3"],
        &["--engine", "calvin", "--partitions", "2", "--replicas", "3"],
        &["--engine", "qstore", "--isolation", "read-committed"],
        &["--engine", "calvin", "--replicas", "3", "--replication", "async"],
    ] {
        let args = args(&[&["--clients-speak", "resp", "--profile", "steady"], flags].concat());
        let mut last = None;
        for seed in 0..3 {
            let report = simulate(&args, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
            spoken += report.spoken;
            last = Some(report);
        }
        assert_eq!(last, simulate(&args, 2, None).ok(), "the same seed once more");
    }
    assert!(spoken > 7 * 3 * 100, "{spoken}");
}

#[test]
fn a_seed_draws_how_many_clients_speak_bytes() {
    let drawn = |seed| Speech::Drawn.speakers(seed, 8);
    assert_eq!((0..8).map(drawn).collect::<Vec<_>>(), [0, 2, 4, 0, 2, 6, 0, 8]);
    let command = reproduce(&args(&["--clients-speak", "calls"]), 1);
    assert!(command.contains(" --clients-speak calls"), "{command}");
}

/// Regions with storage of their own: servers that execute and may be replaced, storage nodes that die and come back, views of the others.
#[test]
fn regions_are_strictly_serializable_each_and_show_others_a_moment_of_theirs() {
    for (engine, shape) in [
        ("regions-silo", "--regions 2 --replicas 3 --option ro-mode=stale"),
        ("regions-2pl", "--regions 1 --servers 2 --replicas 3"),
        ("regions-2pl", "--regions 2 --replicas 3 --option overlay=true"),
        ("regions-silo", "--regions 2 --replicas 2 --storage full"),
        ("regions-silo", "--regions 2 --replicas 3 --option occ-rounds=2"),
    ] {
        for profile in ["steady", "storm"] {
            let flags = ["--engine", engine, "--profile", profile, "--txns", "300"];
            let args = args(&flags.into_iter().chain(shape.split(' ')).collect::<Vec<_>>());
            let report = simulate(&args, 7, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, 7));
            assert!(report.committed > 20, "{shape} {profile}: {report}");
        }
    }
}

/// Engines of regions within one region: a partition with several shards, and clients whose steps lock in any order.
#[test]
fn controls_of_regions_are_strictly_serializable_with_all_faults() {
    for engine in ["regions-2pl", "regions-silo"] {
        let engine = ["--engine", engine, "--shards", "3", "--txns", "250"];
        for speak in ["calls", "steps"] {
            let args = args(&[&engine[..], &["--clients-speak", speak]].concat());
            let mut committed = 0;
            for seed in 0..2 {
                let report = simulate(&args, seed, None).unwrap();
                assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
                committed += report.committed;
            }
            assert!(committed > 100, "{engine:?} {speak}: {committed}");
        }
    }
}

/// Runs an engine of the commit family under all faults: on one node, over several partitions, with members.
fn demand_strict(engine: &str) {
    demand_level(engine, 4);
}

/// Runs an engine in the same way, for one of so many seeds, and holds it to the level that it promises. In storms no value is in memory
/// for longer than it is used.
fn demand_level(engine: &str, of: u64) {
    for (partitions, replicas, seeds) in
        [("1", "1", 0..20 / of), ("2", "1", 0..10 / of), ("1", "3", 0..8 / of), ("2", "3", 0..8 / of)]
    {
        let (mut crashes, count) = (0, seeds.end - seeds.start);
        for (profile, budget) in [("steady", &[][..]), ("storm", &["--memory-budget", "0"])] {
            let shape = ["--partitions", partitions, "--replicas", replicas, "--profile", profile];
            let with = args(&[&["--engine", engine, "--txns", "300"], &shape[..], budget].concat());
            let mut committed = 0;
            let mut last = None;
            for seed in seeds.clone() {
                let report = simulate(&with, seed, None).unwrap();
                assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&with, seed));
                committed += report.committed;
                crashes += report.counts.crashes;
                last = Some(report);
            }
            assert!(committed > count * 60, "{committed} committed");
            assert_eq!(last, simulate(&with, seeds.end - 1, None).ok(), "the same seed once more");
        }
        assert!(u64::from(crashes) > 2 * count, "{crashes} crashes");
    }
}

/// Clients that hold interactive transactions, over connections that break anywhere.
#[test]
fn interactive_transactions_keep_their_level_with_all_faults() {
    for engine in ["no-wait", "wait-die", "timestamp", "mvcc", "maat", "occ-2pc", "walter", "fwkv"] {
        for (seed, shape) in
            [&["--replicas", "3"][..], &["--partitions", "2", "--replicas", "3"]].into_iter().enumerate()
        {
            let flags = ["--engine", engine, "--clients-speak", "steps", "--txns", "200"];
            let (with, seed) = (args(&[&flags, shape].concat()), seed as u64);
            let report = simulate(&with, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&with, seed));
            assert!(report.spoken > 150, "{report}");
        }
    }
}

#[test]
fn no_wait_is_strictly_serializable_with_all_faults() {
    demand_strict("no-wait");
}

#[test]
fn wait_die_is_strictly_serializable_with_all_faults() {
    demand_strict("wait-die");
}

/// The checker holds it to the order of stamps.
#[test]
fn timestamp_is_serializable_in_the_order_of_stamps_with_all_faults() {
    demand_level("timestamp", 6);
}

/// Runs `timestamp` with options over partitions, with members and without; under all faults, and under all but those of clocks: then it is held
/// to the bound of inversions too.
fn demand_stamps(options: &[&str], seeds: std::ops::Range<u64>) {
    let faults = Faults::ALL.without(Fault::Clock).to_string();
    for (replicas, faults) in [("1", "all"), ("3", "all"), ("1", &*faults), ("3", &*faults)] {
        let shape = ["--partitions", "2", "--replicas", replicas, "--faults", faults, "--txns", "200"];
        let engine = ["--engine", "timestamp"];
        let args = args(&[&engine, &shape[..], options].concat());
        let mut committed = 0;
        for seed in seeds.clone() {
            let report = simulate(&args, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
            committed += report.committed;
        }
        assert!(committed > (seeds.end - seeds.start) * 20, "{committed} committed");
        assert!(options.iter().all(|option| reproduce(&args, 1).contains(option)));
    }
}

#[test]
fn timestamp_by_clocks_alone_is_serializable_in_the_order_of_stamps() {
    demand_stamps(&["--option", "ts-source=clock"], 0..3);
    demand_stamps(&["--option", "ts-source=clock", "--option", "skew-us=100000"], 3..5);
}

#[test]
fn timestamp_by_one_counter_is_strictly_serializable() {
    demand_stamps(&["--option", "ts-source=counter"], 0..3);
    let shapes = [("1", 0..3), ("2", 3..8)];
    demand_deposed(&["--engine", "timestamp", "--option", "ts-source=counter"], shapes);
}

#[test]
fn timestamp_under_skew_inverts_real_time_within_the_skew_and_the_reservation() {
    demand_stamps(&["--option", "skew-us=100000"], 0..3);
}

#[test]
fn mvcc_is_serializable_in_the_order_of_stamps_with_all_faults() {
    demand_level("mvcc", 6);
}

/// Its stamps are chosen when attempts commit; the checker holds it to their order, and to that of sessions.
#[test]
fn maat_is_serializable_in_the_order_of_stamps_with_all_faults() {
    demand_level("maat", 8);
}

#[test]
fn occ_2pc_is_strictly_serializable_with_all_faults() {
    demand_level("occ-2pc", 4);
}

#[test]
fn regions_mvocc_is_strictly_serializable_with_all_faults() {
    let engine = ["--engine", "regions-mvocc", "--txns", "300"];
    let storm = [&engine[..], &["--profile", "storm"]].concat();
    let regions = ["--regions", "2", "--servers", "2", "--replicas", "3"];
    demand_sound(&[&storm[..], &["--replicas", "3"]].concat(), 0..1);
    demand_sound(&[&storm[..], &regions].concat(), 0..1);
    demand_sound(&[&storm[..], &regions, &["--option", "ro-mode=stale"]].concat(), 1..2);
    demand_sound(&[&storm[..], &regions, &["--option", "ro-local=resolved"]].concat(), 2..3);
    demand_sound(&[&engine[..], &["--replicas", "3", "--clients-speak", "steps"]].concat(), 0..1);
}

#[test]
fn walter_has_parallel_snapshots_in_the_order_of_sessions_with_all_faults() {
    demand_level("walter", 8);
}

#[test]
fn fwkv_has_fresh_parallel_snapshots_with_all_faults() {
    demand_level("fwkv", 6);
}

/// Clocks do not jump, so that all is forgotten in time: at the end nothing names a reader.
#[test]
fn snapshots_leave_no_name_of_a_reader() {
    let faults = Faults::ALL.without(Fault::Clock).to_string();
    for profile in ["steady", "storm"] {
        let given = ["--engine", "fwkv", "--profile", profile, "--faults", &faults, "--txns", "300"];
        demand_sound(&[&given[..], &["--replicas", "3"]].concat(), 0..1);
        demand_sound(&[&given[..], &["--partitions", "2", "--replicas", "3"]].concat(), 0..2);
    }
}

#[test]
fn snapshots_are_sound_with_each_way_to_tell_of_decisions_and_readers() {
    for (engine, options) in [
        ("fwkv", ["install=paper", "gc-ids=remove"]),
        ("walter", ["install=paper", "fresh-begin=true"]),
        ("fwkv", ["propagate-delay-us=20000", "fresh-begin=true"]),
    ] {
        for shape in [&["--partitions", "3"][..], &["--partitions", "2", "--replicas", "3"]] {
            let given = ["--engine", engine, "--option", options[0], "--option", options[1], "--txns", "200"];
            demand_sound(&[&given, shape].concat(), 0..2);
        }
    }
}

#[test]
fn maat_is_sound_with_each_prewrite_and_whatever_stamps_it_keeps() {
    for options in
        [["prewrite=access", "cap=1000"], ["prewrite=deferred", "cap=0"], ["prewrite=access", "cap=1"]]
    {
        for shape in [&["--partitions", "2"][..], &["--partitions", "2", "--replicas", "3"]] {
            let given = ["--engine", "maat", "--option", options[0], "--option", options[1], "--txns", "200"];
            demand_sound(&[&given, shape].concat(), 0..2);
        }
    }
}

#[test]
fn an_engine_is_refused_what_it_has_not_got() {
    let refusal = |flags: &[&str]| simulate(&args(flags), 1, None).unwrap_err().to_string();
    assert!(refusal(&["--engine", "no-wait", "--regions", "2"]).contains("no regions"));
    let restores =
        ["--engine", "regions-silo", "--regions", "1", "--replicas", "3", "--operations", "restore"];
    assert!(refusal(&restores).contains("from their storage nodes"));
    assert!(refusal(&["--engine", "no-wait", "--operator"]).contains("without an operator"));
    assert!(refusal(&["--engine", "no-wait", "--execution", "speculative"]).contains("execution"));
    assert!(refusal(&["--engine", "no-wait", "--replicas", "3", "--replication", "async"]).contains("async"));
    let backoff = args(&["--engine", "wait-die", "--option", "backoff=none", "--txns", "60"]);
    assert!(reproduce(&backoff, 1).contains(" --option backoff=none"));
    let report = simulate(&backoff, 1, None).unwrap();
    assert!(report.verdict.is_ok(), "{report}");
}

#[test]
fn seeds_of_the_bank_are_sound() {
    demand_sound(&["--workload", "transfers", "--keys", "6"], 1000..1030);
}

#[test]
fn seeds_without_faults_are_sound_on_every_number_of_shards() {
    for shards in ["1", "2", "5", "64"] {
        demand_sound(&["--faults", "none", "--shards", shards], 2000..2005);
    }
}

#[test]
fn seeds_of_clusters_without_members_are_sound() {
    demand_sound(&["--partitions", "2"], 4000..4012);
    demand_sound(&["--partitions", "4"], 4100..4105);
    // Journals were trimmed of what had become durable together with what a checkpoint covered.
    demand_sound(&["--partitions", "4"], 6..7);
    demand_sound(&["--partitions", "4"], 45..46);
}

#[test]
fn seeds_of_clusters_with_members_are_sound() {
    demand_sound(&["--partitions", "1", "--replicas", "3"], 5000..5008);
    // What was passed on again to a leader met anew was more than the link held, for ever.
    demand_sound(&["--partitions", "1", "--replicas", "3"], 7049..7050);
    demand_sound(&["--partitions", "2", "--replicas", "3"], 5100..5108);
    // A fetched checkpoint was damaged, and the log did not reach back to the one before.
    let small = ["--partitions", "3", "--replicas", "3", "--txns", "400", "--keys", "16"];
    demand_sound(&[&small[..], &["--workload", "mix"]].concat(), 4_898_665..4_898_666);
    demand_sound(&["--partitions", "3", "--replicas", "2", "--workload", "transfers"], 5200..5204);
}

#[test]
fn seeds_of_clusters_with_primaries_are_sound() {
    let grid = |partitions, replicas| {
        args(&["--partitions", partitions, "--replicas", replicas, "--replication", "async"])
    };
    for (partitions, replicas, seeds) in
        [("1", "3", 0..6), ("2", "2", 30..38), ("2", "3", 0..6), ("3", "2", 0..3)]
    {
        demand_sound_of(&grid(partitions, replicas), seeds);
    }
    // With one partition there is no exchange to say what is certain.
    demand_sound_of(&grid("1", "3"), 19..20);
    // A candidate whose own exchange was slow evicted itself; a rebuilt node did not learn that its log
    // was wrong; what was answered in a life that had ended was held to; slices were forgotten that a member had not on
    // its disk; a primary that had been given up learnt what was made of its successor's batches.
    demand_sound_of(&grid("2", "2"), 553..554);
    // What a node had sent before it crashed arrived when it ran again, and was held against its later life.
    demand_sound_of(&grid("2", "2"), 932..933);
    demand_sound_of(&grid("2", "2"), 225..226);
    demand_sound_of(&grid("2", "2"), 141..142);
    demand_sound_of(&grid("2", "3"), 136..137);
    demand_sound_of(&grid("2", "2"), 106..107);
    // A full disk left half of a sector that was written before.
    demand_sound_of(&grid("3", "2"), 209..210);
    // What a node had sent and forgotten with a crash was held back elsewhere, and hid a batch of the next term.
    let small = |flags: &[&str]| {
        let grid = ["--partitions", "2", "--replicas", "3", "--replication", "async", "--txns"];
        args(&[&grid[..], flags].concat())
    };
    demand_sound_of(&small(&["400", "--keys", "16", "--workload", "mix"]), 106..107);
    let faults = "crash,partition,delay,reorder,duplicate,disk";
    demand_sound_of(&small(&["76", "--faults", faults]), 106..107);
    // What a node that was met anew was sent again was more than its link had room for, so that it was met anew.
    demand_sound_of(&grid("2", "2"), 50_023..50_024);
}

#[test]
fn seeds_with_reads_on_snapshots_are_sound() {
    for (reads, first) in [("previous", 0), ("session", 100), ("strict", 200)] {
        let flags = ["--engine", "paxflow", "--reads", reads];
        demand_sound(&flags, first..first + 8);
        demand_sound(&[&flags[..], &["--partitions", "3"]].concat(), first..first + 5);
        let members = ["--partitions", "2", "--replicas", "3"];
        demand_sound(&[&flags[..], &members].concat(), first..first + 3);
        let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
        demand_sound(&[&flags[..], &primaries].concat(), first..first + 3);
    }
    // A clock has jumped ahead by minutes: of the keys that a SCAN passes, some have ended and others have not.
    let ahead = ["--engine", "paxflow", "--profile", "storm", "--partitions", "2", "--replicas", "3"];
    demand_sound(&ahead, 7..8);
}

#[test]
fn seeds_in_queues_are_sound() {
    let queues = ["--engine", "qstore"];
    demand_sound(&queues, 0..8);
    demand_sound(&[&queues[..], &["--partitions", "3"]].concat(), 100..106);
    demand_sound(&[&queues[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..203);
    demand_sound(&[&queues[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..303);
    let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
    demand_sound(&[&queues[..], &primaries].concat(), 400..403);
    let speculative = [&queues[..], &["--execution", "speculative"]].concat();
    demand_sound(&speculative, 500..508);
    demand_sound(&[&speculative[..], &["--partitions", "2", "--replicas", "2"]].concat(), 500..504);
    // A unit was not over as long as the batch after it had to wait for a checkpoint, which waited for the unit.
    demand_sound(&[&speculative[..], &["--checkpoint-mode", "naive"]].concat(), 0..8);
    // A batch that a full disk refused was executed without its writes, and was still marked as one to be speculated, to
    // this node alone.
    demand_sound(&[&speculative[..], &["--partitions", "2"]].concat(), 37..38);
    // A node that was asked for its digest was rebuilt, and was then expected to answer both times.
    demand_sound(&[&speculative[..], &primaries].concat(), 82_011..82_012);
    // An answer of a node that had yet to meet the one which had met it.
    demand_sound(&[&speculative[..], &primaries].concat(), 96_056..96_057);
}

/// Of no record a value is in memory for longer than it is used.
#[test]
fn seeds_with_values_on_disk_are_sound() {
    let queues = ["--engine", "qstore", "--memory-budget", "0"];
    for (engine, first) in [("calvin", 0), ("calvin-paper", 10), ("paxflow", 20), ("qstore", 30)] {
        let flags = ["--engine", engine, "--memory-budget", "0"];
        demand_sound(&flags, first..first + 2);
        demand_sound(&[&flags[..], &["--partitions", "2"]].concat(), first..first + 2);
        demand_sound(&[&flags[..], &["--partitions", "2", "--replicas", "3"]].concat(), first..first + 1);
    }
    demand_sound(&[&queues[..], &["--execution", "speculative"]].concat(), 300..302);
    demand_sound(&[&queues[..], &["--isolation", "read-committed"]].concat(), 400..402);
}

#[test]
fn seeds_that_abort_in_cascades_are_sound() {
    let cascade = ["--engine", "qstore", "--execution", "speculative", "--cascade", "abort"];
    demand_sound(&cascade, 0..8);
    demand_sound(&[&cascade[..], &["--partitions", "3"]].concat(), 100..106);
    demand_sound(&[&cascade[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..203);
    let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
    demand_sound(&[&cascade[..], &primaries].concat(), 400..403);
    demand_sound(&[&cascade[..], &["--isolation", "read-committed"]].concat(), 500..506);
}

#[test]
fn seeds_that_read_what_is_committed_are_sound() {
    let level = ["--engine", "qstore", "--isolation", "read-committed"];
    demand_sound(&level, 0..8);
    demand_sound(&[&level[..], &["--partitions", "3"]].concat(), 100..106);
    demand_sound(&[&level[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..203);
    demand_sound(&[&level[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..303);
    let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
    demand_sound(&[&level[..], &primaries].concat(), 400..403);
    demand_sound(&[&level[..], &["--checkpoint-mode", "naive"]].concat(), 500..504);
}

#[test]
fn seeds_with_a_lock_manager_are_sound() {
    let paper = ["--engine", "calvin-paper"];
    demand_sound(&paper, 0..10);
    demand_sound(&[&paper[..], &["--partitions", "3"]].concat(), 100..110);
    demand_sound(&[&paper[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..205);
    demand_sound(&[&paper[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..305);
    let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
    demand_sound(&[&paper[..], &primaries].concat(), 400..405);
}

/// paxflow.md, section 8, scenario 5.
#[test]
fn previous_may_miss_what_session_and_strict_do_not() {
    let missed = |reads: &str, seeds: std::ops::Range<u64>| {
        let args = args(&["--engine", "paxflow", "--reads", reads, "--partitions", "3"]);
        seeds.into_iter().find(|seed| {
            let mut system = DeterministicSystem::new(&args, *seed).unwrap();
            let mut workload = workload(&mut system, &args, *seed).unwrap();
            held_to(Promise::Strict, system, config(&args, *seed), &mut *workload, None).verdict.is_err()
        })
    };
    // What is of the same epoch is rarely answered and asked for by two clients just then.
    for reads in ["previous", "session"] {
        assert_ne!(missed(reads, 300..700), None, "{reads}: answers to others may be missed");
    }
    assert_eq!(missed("strict", 300..308), None);
}

#[test]
fn a_seed_of_a_cluster_repeats_to_the_byte() {
    demand_repeated(&["--partitions", "2", "--replicas", "3"], 6000..6002);
}

#[test]
fn a_seed_repeats_to_the_byte() {
    demand_repeated(&[], 3000..3005);
}

fn demand_repeated(flags: &[&str], seeds: std::ops::Range<u64>) {
    let args = args(flags);
    for seed in seeds {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let a = simulate(&args, seed, Some(&mut |line| first.push(line.to_owned()))).unwrap();
        let b = simulate(&args, seed, Some(&mut |line| second.push(line.to_owned()))).unwrap();
        assert_eq!(a, b);
        assert_eq!(first, second);
    }
}

#[test]
fn nodes_lose_their_disks_and_come_back() {
    let mut lost = 0;
    for (partitions, replicas, seeds) in [(1, 3, 9000..9012), (2, 3, 9100..9112)] {
        let flags = args(&["--faults", "loss,crash", "--shards", "1"]);
        let args = SimArgs { partitions, replicas, ..flags };
        for seed in seeds {
            let report = simulate(&args, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
            lost += report.counts.disks_lost;
        }
    }
    assert!(lost > 5, "only {lost} disks were lost");
}

/// Decision 57: storage nodes lose their disks one after the other, and nothing that was answered is lost.
#[test]
fn storage_nodes_lose_their_disks_and_come_back() {
    let region = ["--engine", "regions-silo", "--regions", "1", "--servers", "2", "--replicas", "3"];
    let flags = ["--faults", "loss,crash", "--txns", "300"];
    let mut lost = 0;
    for mode in ["quorum", "full"] {
        let args = args(&[&region[..], &flags, &["--storage", mode]].concat());
        for seed in 9200..9205 {
            let report = simulate(&args, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
            lost += report.counts.disks_lost;
        }
    }
    assert!(lost > 2, "only {lost} disks were lost");
}

/// No comparison of digests is needed in the end: a replica that has diverged reports it.
#[test]
fn a_replica_that_diverges_takes_itself_out() {
    for (partitions, replicas) in [(1, 3), (2, 3), (1, 2)] {
        let flags = args(&["--faults", "none", "--txns", "600"]);
        let args = SimArgs { plant: Some(Bug::FlipRecord), partitions, replicas, ..flags };
        let fenced = |seed: &u64| {
            let verdict = simulate(&args, *seed, None).unwrap().verdict;
            verdict.is_err_and(|violation| violation.to_string().contains("takes itself out"))
        };
        let found = (0..20).filter(fenced).count();
        assert!(found >= 10, "{partitions} x {replicas}: only {found} of 20");
    }
}

/// Demands that leaders lose their power in each way, and get it back, and that runs are sound.
fn demand_deposed(engine: &[&str], shapes: [(&str, std::ops::Range<u64>); 2]) {
    for fault in ["depose", "regain", "hold"] {
        let mut counts = Counts::default();
        for (partitions, seeds) in shapes.clone() {
            let shape = ["--partitions", partitions, "--replicas", "3", "--faults", fault, "--txns", "150"];
            let args = args(&[engine, &shape].concat());
            for seed in seeds {
                let report = simulate(&args, seed, None).unwrap();
                assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
                counts.deposed += report.counts.deposed;
                counts.regained += report.counts.regained;
                counts.held += report.counts.held;
            }
        }
        let is_there = [counts.deposed, counts.regained, counts.held].map(|count| count > 0);
        assert_eq!(is_there, [true, fault == "regain", fault == "hold"], "{fault}: {counts:?}");
    }
}

#[test]
fn leaders_lose_their_power_while_they_live_and_get_it_back() {
    demand_deposed(&[], [("1", 0..3), ("2", 3..6)]);
    for engine in ["no-wait", "wait-die"] {
        demand_deposed(&["--engine", engine], [("1", 0..4), ("2", 6..10)]);
    }
}

/// What a leader sends for the message behind which it stands still leaves when another one leads.
#[test]
fn a_held_leader_does_nothing_until_another_leads() {
    let args = args(&["--replicas", "3", "--faults", "hold", "--txns", "150"]);
    let mut lines: Vec<String> = Vec::new();
    simulate(&args, 0, Some(&mut |line| lines.push(line.to_owned()))).unwrap();
    let at = |from: usize, what: &str| {
        lines.iter().skip(from).position(|line| line.contains(what)).unwrap() + from
    };
    let held = at(0, "stands still in the step");
    let node = lines[held].split("node ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let goes_on = at(held, &format!("node {node} goes on"));
    let elected = at(held, " leads in term");
    assert!(held < elected && elected < goes_on);
    let of_node = format!(" {node}/");
    assert!(lines[held..goes_on].iter().all(|line| !line.contains(&of_node)), "it does something");
    assert!(lines[goes_on..].iter().any(|line| line.contains(&of_node)));
}
