//! Tests of the microbenchmark: its shares, its classes of clients, and its sums.

use ordain_model::Datum;
use ordain_model::KeyHash;
use ordain_model::OutcomeStatus::Aborted;
use ordain_model::key::shard_of_slot;

use super::*;
use crate::choice::Scatter;
use crate::testing::{Bed, load_again, run, wrong};

fn calvin() -> Calvin {
    Calvin {
        partitions: 4,
        records_per_partition: 500,
        contention_index: 0.1,
        multi_partition: 0.4,
        ..Calvin::default()
    }
}

#[test]
fn loading_writes_over_what_there_is() {
    load_again(&Micro::calvin(calvin()).unwrap());
}

#[test]
fn counters_add_up_whatever_aborts() {
    for (constraint_fails, aborts) in
        [(None, 0..1), (Some(0.0), 0..1), (Some(0.3), 60..120), (Some(1.0), 300..301)]
    {
        let micro = Micro::calvin(Calvin { constraint_fails, ..calvin() }).unwrap();
        let (_, mut seen) = run(&micro, 2, 300);
        assert_eq!(wrong(&micro.check(&seen)), [""; 0], "{constraint_fails:?}");
        assert!(aborts.contains(&seen.total().aborted), "{constraint_fails:?} {:?}", seen.total());
        seen.by_kind[1].committed += 1;
        assert!(wrong(&micro.check(&seen)).contains(&"increments"));
    }
    for dependent in [0.5, 1.0] {
        let micro = Micro::calvin(Calvin { dependent, ..calvin() }).unwrap();
        assert_eq!(wrong(&micro.check(&run(&micro, 2, 300).1)), [""; 0], "{dependent}");
    }
    for (records, read_only, reads) in [(50, 0.0, 0..1), (1_000, 0.5, 110..190), (50, 1.0, 300..301)] {
        let micro =
            Micro::regions(Regions { records, ops_per_txn: 5, read_only, ..Regions::default() }).unwrap();
        let (_, mut seen) = run(&micro, 2, 300);
        assert_eq!(wrong(&micro.check(&seen)), [""; 0]);
        assert!(reads.contains(&seen.by_kind[1].committed), "{read_only} {seen:?}");
        seen.by_kind[0].aborted += 1;
        assert_eq!(wrong(&micro.check(&seen)), ["no_aborts"]);
    }
}

#[test]
fn a_failed_check_leaves_no_trace_and_a_passed_one_adds_everywhere() {
    let mut bed = Bed::new();
    bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
    let add = |what: u8, floor: u64| {
        move |args: &mut ArgsBuilder<'_>| {
            let mut packed = vec![what];
            packed.extend_from_slice(&floor.to_le_bytes());
            args.push(&key(1)).push(&key(2)).push(&packed);
        }
    };
    bed.run(RUN, add(Run::ADD, ALWAYS));
    bed.run(RUN, add(Run::CHECK_AND_ADD, 1));
    let digest = bed.executor.digest();
    let failed = bed.call(RUN, add(Run::CHECK_AND_ADD, 3));
    assert_eq!(failed.status, Aborted(Abort::Logic));
    assert!(matches!(Datum::first(&failed.reply), Datum::Error(text) if text.starts_with(b"CONSTRAINT")));
    assert_eq!(bed.executor.digest(), digest);
    assert_eq!(Datum::first(&bed.run(RUN, add(Run::READ, 0))), Datum::Int(4));
}

#[test]
fn what_is_added_depends_on_what_is_found_elsewhere() {
    let mut bed = Bed::new();
    bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
    let call = |what: u8, keys: &'static [u64]| {
        move |args: &mut ArgsBuilder<'_>| {
            keys.iter().for_each(|record| _ = args.push(&key(*record)));
            args.push(&[what, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
    };
    let mut found = |record: &'static [u64]| Datum::first(&bed.run(RUN, call(Run::READ, record))).as_int();
    assert_eq!((found(&[1]), found(&[2])), (Some(0), Some(0)));
    bed.run(RUN, call(Run::ADD, &[1]));
    // It is odd: one more for itself, and one for the other; and then it is even.
    for expected in [(2, 1), (4, 1)] {
        bed.run(RUN, call(Run::DEPEND, &[1, 2]));
        let mut found =
            |record: &'static [u64]| Datum::first(&bed.run(RUN, call(Run::READ, record))).as_int();
        assert_eq!((found(&[1]), found(&[2])), (Some(expected.0), Some(expected.1)));
    }
    assert!(bed.refuses(RUN, &[&key(1)[..], &[Run::DEPEND, 0, 0, 0, 0, 0, 0, 0, 0]]), "a half");
}

#[test]
fn one_record_of_each_partition_is_hot_and_hot_ones_and_partitions_are_even() {
    let micro = Micro::calvin(calvin()).unwrap();
    let divided = Partition::divide(2_000, 4, key);
    let hot_of = |partition: &Partition| {
        let scatter = Scatter::new(partition.count());
        (0..10).map(|rank| partition.record(scatter.place(rank))).collect::<Vec<_>>()
    };
    let hot: Vec<u64> = divided.iter().flat_map(hot_of).collect();
    let mut clients = Clients::new(&micro, 3, 0, 1);
    let (mut several, mut draws, mut used) = (0u32, vec![0u32; hot.len()], 0u32);
    const TXNS: u32 = 20_000;
    for _ in 0..TXNS {
        let made = clients.next();
        let partitions = 1 + u32::from(made.kind == MULTI);
        several += partitions - 1;
        used += partitions;
        let mut ops = [(0, 0); 4];
        for record in clients.population.drawn.records() {
            let at = shard_of_slot(KeyHash::of(&key(*record)).slot(), 4);
            ops[at].0 += 1;
            if let Some(i) = hot.iter().position(|hot| hot == record) {
                ops[at].1 += 1;
                draws[i] += 1;
            }
        }
        ops.sort_unstable();
        let expected = if partitions == 2 {
            [(0, 0), (0, 0), (5, 1), (5, 1)]
        } else {
            [(0, 0), (0, 0), (0, 0), (10, 1)]
        };
        assert_eq!(ops, expected);
    }
    assert!((8_000 - 350..8_000 + 350).contains(&several), "{several}");
    // A hot record is drawn as often as any other of the 40: within five standard deviations.
    let mean = f64::from(used) / 40.0;
    assert!(draws.iter().all(|n| (f64::from(*n) - mean).abs() < 5.0 * mean.sqrt()), "{draws:?}");
}

#[test]
fn clients_at_home_want_something_of_their_own_node_s_partition_first() {
    let micro = Micro::calvin(Calvin { at_home: true, ..calvin() }).unwrap();
    for (number, populations, home) in [(0, 4, 0..1), (3, 4, 3..4), (5, 8, 2..3), (1, 2, 2..4)] {
        let mut clients = Clients::new(&micro, 3, number, populations);
        let mut seen = [false; 4];
        for _ in 0..500 {
            clients.next();
            let partition = |record: &u64| shard_of_slot(KeyHash::of(&key(*record)).slot(), 4);
            let used: Vec<usize> = clients.population.drawn.records().iter().map(partition).collect();
            assert!(home.contains(&used[0]));
            used.iter().for_each(|partition| seen[*partition] = true);
        }
        assert_eq!(seen, [true; 4], "the second partition is any other");
    }
}

#[test]
fn clients_of_a_region_load_use_and_audit_its_records_alone() {
    let micro = Micro::regions(Regions { regions: 2, records: 100, ..Regions::default() }).unwrap();
    assert_eq!((micro.audits().len(), micro.records()), (0, 200));
    let region = |record: &u64| shard_of_slot(KeyHash::of(&key(*record)).slot(), 2);
    let mut loaded = [0; 2];
    for number in 0..4 {
        let mut clients = Clients::new(&micro, 3, number, 4);
        let mut own = std::collections::BTreeSet::new();
        while clients.load().is_some() {
            own.extend(clients.population.drawn.records().iter().copied());
        }
        assert!(own.iter().all(|record| region(record) == number / 2));
        loaded[number / 2] += own.len();
        for _ in 0..50 {
            clients.next();
            assert!(clients.population.drawn.records().iter().all(|of| region(of) == number / 2));
        }
        let mut audited = std::collections::BTreeSet::new();
        while clients.audit().is_some() {
            audited.extend(clients.population.drawn.records().iter().copied());
        }
        assert_eq!(own, audited);
    }
    assert_eq!(loaded, [100, 100]);
}

#[test]
fn half_of_the_records_of_a_multi_region_transaction_are_in_one_other_region() {
    let multi_region = 0.25;
    let three = Regions { regions: 3, records: 100, multi_region, ..Regions::default() };
    let micro = Micro::regions(three).unwrap();
    let region = |record: &u64| shard_of_slot(KeyHash::of(&key(*record)).slot(), 3);
    let mut clients = Clients::new(&micro, 3, 1, 3);
    let mut others = [0; 3];
    let places = |clients: &mut Clients, made: Made, others: &mut [u32; 3]| {
        let mut at = [0; 3];
        clients.population.drawn.records().iter().for_each(|record| at[region(record)] += 1);
        match made.kind {
            WRITES => assert_eq!(at, [0, 10, 0]),
            _ => assert!(at[1] == 5 && [at[0], at[2]].contains(&5), "{at:?}"),
        }
        (0..3).filter(|number| *number != 1 && at[*number] == 5).for_each(|number| others[number] += 1);
        made.kind == MULTI_WRITES
    };
    let mut multi = 0;
    for _ in 0..2_000 {
        let made = clients.next();
        multi += u32::from(places(&mut clients, made, &mut others));
    }
    assert!((400..600).contains(&multi), "{multi}");
    assert!(others[0] > 150 && others[2] > 150 && others[0] + others[2] == multi, "{others:?}");
    for _ in 0..100 {
        let made = clients.next_of(0);
        assert!(!places(&mut clients, made, &mut others));
        let made = clients.next_of(MULTI_CLASS);
        assert!(places(&mut clients, made, &mut others));
    }
    let classes = micro.classes();
    assert_eq!((classes.len(), classes[0].at_most, classes[1].at_most), (2, 1.0, multi_region));
    // Where there is one kind of transactions, there are no classes to keep apart.
    for multi_region in [0.0, 1.0] {
        let regions = Regions { regions: 3, records: 100, multi_region, ..Regions::default() };
        assert_eq!(Micro::regions(regions).unwrap().classes(), []);
    }
}

#[test]
fn audits_of_parts_add_up() {
    let micro = Micro::regions(Regions { regions: 2, records: 10, ..Regions::default() }).unwrap();
    let part = |records, sum| {
        let mut out = Vec::new();
        let found = Numbers { records, sum, damaged: 0 };
        Audited { found, ..Audited::default() }.write(&mut out);
        out
    };
    let by_kind = vec![Counts { committed: 3, ..Counts::default() }, Counts::default()];
    let of =
        |audits| wrong(&micro.check(&Results { audits, by_kind: by_kind.clone(), ..Results::default() }));
    assert_eq!(of(vec![part(12, 10), part(8, 20)]), [""; 0]);
    assert_eq!(of(vec![part(12, 10), part(8, 19)]), ["increments"]);
    assert_eq!(of(vec![part(12, 10), part(7, 20)]), ["records"]);
    assert_eq!(of(vec![part(20, 30), Vec::new()]), ["audit"]);
    // What a transaction of two regions has added is found in both.
    let committed = |committed| Counts { committed, ..Counts::default() };
    let by_kind = [2, 5, 1, 7].map(committed).to_vec();
    let of =
        |audits| wrong(&micro.check(&Results { audits, by_kind: by_kind.clone(), ..Results::default() }));
    assert_eq!(of(vec![part(12, 15), part(8, 15)]), [""; 0]);
    assert_eq!(of(vec![part(12, 15), part(8, 10)]), ["increments"]);
    let mut bed = Bed::new();
    bed.run(LOAD, |args| _ = args.push(&key(1)).push(&key(2)).push(&[]));
    bed.run(RUN, |args| _ = args.push(&key(2)).push(&[Run::ADD, 0, 0, 0, 0, 0, 0, 0, 0]));
    let reply = bed.run(COUNT, |args| _ = args.push(&key(1)).push(&key(2)).push(&key(3)).push(&[]));
    let found = Audited::<Numbers>::read(&reply).unwrap().found;
    assert_eq!(found, Numbers { records: 2, sum: 1, damaged: 0 });
}

#[test]
fn nonsense_is_refused_by_name() {
    let refused = |calvin: Calvin| Micro::calvin(calvin).unwrap_err().to_string();
    for (parameters, name) in [
        (Calvin { partitions: 0, ..calvin() }, "partitions"),
        (Calvin { records_per_partition: 0, ..calvin() }, "records_per_partition"),
        (Calvin { records_per_partition: u64::MAX, ..calvin() }, "records_per_partition"),
        (Calvin { contention_index: 0.0, ..calvin() }, "contention_index"),
        (Calvin { contention_index: f64::NAN, ..calvin() }, "contention_index"),
        (Calvin { contention_index: 0.001, ..calvin() }, "contention_index 0.001 makes 1000"),
        (Calvin { multi_partition: 2.0, ..calvin() }, "multi_partition"),
        (Calvin { partitions: 1, ..calvin() }, "multi_partition"),
        (Calvin { ops_per_txn: 0, ..calvin() }, "ops_per_txn"),
        (Calvin { ops_per_txn: 9, ..calvin() }, "even"),
        (Calvin { constraint_fails: Some(-0.1), ..calvin() }, "constraint_fails"),
    ] {
        assert!(refused(parameters).contains(name), "{name}");
    }
    let refused = |regions: Regions| Micro::regions(regions).unwrap_err().to_string();
    assert!(refused(Regions { records: 0, ..Regions::default() }).contains("records"));
    assert!(refused(Regions { regions: 0, ..Regions::default() }).contains("regions"));
    assert!(refused(Regions { records: 9, ..Regions::default() }).contains("ops_per_txn"));
    assert!(refused(Regions { read_only: 1.5, ..Regions::default() }).contains("read_only"));
    let two = Regions { regions: 2, multi_region: 0.1, ..Regions::default() };
    assert!(refused(Regions { multi_region: 1.1, ..two.clone() }).contains("multi_region"));
    assert!(refused(Regions { regions: 1, ..two.clone() }).contains("multi_region 0.1 needs regions"));
    assert!(refused(Regions { ops_per_txn: 5, ..two.clone() }).contains("even"));
    assert!(refused(Regions { multi_region_clients: -1.0, ..two }).contains("multi_region_clients"));
}

#[test]
fn damaged_arguments_are_refused() {
    let bed = Bed::new();
    assert!(bed.refuses(RUN, &[&key(1)[..], &[3; 9]]));
    assert!(bed.refuses(RUN, &[&key(1)[..], &[0; 8]]));
    assert!(bed.refuses(RUN, &[&key(1)[1..], &[0; 10]]));
    assert!(bed.refuses::<&[u8]>(RUN, &[]));
    assert!(bed.refuses(LOAD, &[&key(1)[..], &[0]]));
}
