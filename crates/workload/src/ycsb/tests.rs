//! YCSB run on the reference executor, and the statistics of its choices.

use ordain_model::{Cell, Datum, Value};

use super::procedures::{Unset, see};
use super::*;
use crate::choice::Scatter;
use crate::testing::{Bed, load_again, run, wrong};

const SKEWED: Distribution = Distribution::Zipfian { theta: 0.9 };

fn parameters(records: u64, ops_per_txn: usize, writes_per_txn: usize) -> Parameters {
    let distribution = SKEWED;
    Parameters { records, ops_per_txn, writes_per_txn, distribution, ..Parameters::default() }
}

fn clients(parameters: Parameters) -> Clients {
    Clients::new(&Ycsb::new(parameters).unwrap(), 5, 0, 1)
}

fn written(clients: &Clients) -> Vec<usize> {
    (0..clients.population.drawn.records().len())
        .filter(|i| clients.packed[i / 8] >> (i % 8) & 1 == 1)
        .collect()
}

#[test]
fn what_is_loaded_and_incremented_is_what_the_audit_finds() {
    let several = Parameters {
        read_only: 0.3,
        read_only_ops: Some(3),
        partitions: 4,
        multi_partition: 0.5,
        partitions_per_txn: 3,
        record_bytes: 12,
        hot_records: 20,
        hot_ops: 1,
        ..parameters(1_000, 10, 4)
    };
    for parameters in [parameters(1_000, 10, 4), several] {
        let ycsb = Ycsb::new(parameters).unwrap();
        let (bed, seen) = run(&ycsb, 3, 300);
        let (audited, _) = audit::read::<Numbers>(&seen).unwrap();
        assert_eq!(audited.digest, bed.executor.digest());
        let sum = 4 * seen.by_kind[0].committed;
        assert_eq!(audited.found, Numbers { records: 1_000, sum, damaged: 0 });
        assert_eq!(seen.total().committed, 300);
        assert_eq!(wrong(&ycsb.check(&seen)), [""; 0]);
        let names: Vec<_> = ycsb.check(&seen).iter().map(|finding| finding.name).collect();
        assert_eq!(names, ["increments", "records", "digest", "no_aborts", "answers"]);
    }
}

#[test]
fn loading_writes_over_what_there_is() {
    load_again(&Ycsb::new(parameters(100, 10, 4)).unwrap());
}

#[test]
fn a_lost_update_a_missing_record_and_a_wrong_digest_are_found() {
    let ycsb = Ycsb::new(parameters(100, 10, 4)).unwrap();
    let (mut bed, mut seen) = run(&ycsb, 1, 20);
    seen.by_kind[0].committed += 1;
    assert_eq!(wrong(&ycsb.check(&seen)), ["increments"]);
    seen.by_kind[0].committed -= 1;
    seen.by_kind[1].aborted = 1;
    assert_eq!(wrong(&ycsb.check(&seen)), ["no_aborts"]);
    seen.by_kind[1].aborted = 0;
    let kept = seen.audits[1].clone();
    bed.run(LOAD, |args| _ = args.push(&key(100)).push(&16u32.to_le_bytes()));
    seen.audits = ycsb.audits().into_iter().map(|audit| bed.run(audit, |_| {})).collect();
    assert_eq!(wrong(&ycsb.check(&seen)), ["records"]);
    seen.audits[1] = kept;
    assert_eq!(wrong(&ycsb.check(&seen)), ["records", "digest"]);
    seen.audits.clear();
    assert_eq!(wrong(&ycsb.check(&seen)), ["audit"]);
}

#[test]
fn the_bits_that_are_not_set_come_in_order() {
    let bytes: Vec<u8> = (0..40).map(|i: u8| i.wrapping_mul(151)).collect();
    for count in [0, 1, 7, 8, 10, 63, 64, 65, 128, 300] {
        let bytes = &bytes[..(count as usize).div_ceil(8)];
        let naive: Vec<u32> = (0..count).filter(|i| bytes[*i as usize / 8] >> (i % 8) & 1 == 0).collect();
        assert_eq!(Unset { bytes, at: 0, bits: 0, count }.collect::<Vec<_>>(), naive, "of {count}");
    }
    // Bits that are not there are left out.
    assert_eq!(Unset { bytes: &[], at: 0, bits: 0, count: 9 }.next(), None);
}

#[test]
fn the_longest_records_are_loaded_one_by_one() {
    let mut bed = Bed::new();
    bed.load(&mut clients(Parameters { record_bytes: MAX_VALUE_LEN, ..parameters(2, 1, 1) }));
    assert!(bed.executor.records().all(|(_, _, cell)| cell.string().map(<[u8]>::len) == Some(MAX_VALUE_LEN)));
    assert_eq!(bed.executor.records().count(), 2);
}

#[test]
fn a_damaged_payload_shows() {
    let cell = |content| Cell { value: Some(Value::String(content)), ..Cell::ABSENT };
    let damaged = |content| {
        let mut numbers = Numbers::default();
        see(&mut numbers, &key(3), &cell(content));
        numbers.damaged == 1
    };
    // Another length: the end of the payload is missing, which the digest tells; a wrong byte is damage.
    assert!(!damaged(initial(3, 100)));
    for at in COUNTER_BYTES..100 {
        let mut content = initial(3, 100);
        content[at] ^= 1;
        assert!(damaged(content), "byte {at}");
    }
    assert!(damaged(initial(4, 100)) && damaged(vec![0; 7]));
}

#[test]
fn a_read_answers_the_checksum_of_whole_records() {
    let mut bed = Bed::new();
    bed.load(&mut clients(parameters(10, 2, 0)));
    let read = |args: &mut ArgsBuilder<'_>| _ = args.push(&key(3)).push(&key(4)).push(&key(5)).push(&[0b010]);
    let sum = checksum(&initial(3, 100)).wrapping_add(checksum(&initial(5, 100)));
    let reply = bed.run(RUN, read);
    assert_eq!(Datum::first(&reply), Datum::Int(sum as i64));
    let audited = audit::Audited::<Numbers>::read(&bed.run(AUDIT, |_| {})).unwrap();
    assert_eq!(audited.found.sum, 1);
    // Nor is a record read that is not there.
    let reply = bed.run(RUN, |args| _ = args.push(&key(3)).push(&key(10)).push(&[0]));
    assert!(matches!(Datum::first(&reply), Datum::Error(_)));
    let mut clients = clients(parameters(10, 2, 0));
    clients.answered(UPDATE, OutcomeStatus::Committed, &reply);
    let seen = Results { summaries: vec![clients.summary()], ..Results::default() };
    assert!(Answers::finding(&seen).wrong.is_some());
    for at in 0..100 {
        let mut content = initial(3, 100);
        content[at] ^= 1;
        assert_ne!(checksum(&content), checksum(&initial(3, 100)), "byte {at}");
    }
}

#[test]
fn every_transaction_writes_exactly_its_share_of_different_records_at_any_place() {
    for writes in [3, 7] {
        let mut clients = clients(parameters(50, 10, writes));
        let mut places = [0u32; 10];
        for _ in 0..5_000 {
            clients.next();
            let records: std::collections::BTreeSet<_> = clients.population.drawn.records().iter().collect();
            assert_eq!(records.len(), 10);
            assert_eq!(written(&clients).len(), writes);
            written(&clients).iter().for_each(|i| places[*i] += 1);
        }
        let mean = 500 * writes as u32;
        assert!(places.iter().all(|n| n.abs_diff(mean) < 150), "{places:?}");
    }
}

#[test]
fn every_choice_of_places_is_as_likely() {
    let mut random = Random::new(3);
    let mut bits = Vec::new();
    for (set, choices) in [(0, 1), (1, 5), (2, 10), (3, 10), (4, 5), (5, 1)] {
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..1_000 * choices {
            choose(&mut random, set, 5, &mut bits);
            assert!(bits.len() == 1 && bits[0].count_ones() as usize == set && bits[0] < 32);
            *seen.entry(bits[0]).or_insert(0u32) += 1;
        }
        assert_eq!(seen.len(), choices);
        // Five standard deviations of 32.
        assert!(seen.values().all(|n| n.abs_diff(1_000) < 160), "{set}: {seen:?}");
    }
    choose(&mut random, 19, 20, &mut bits);
    assert_eq!(bits.iter().map(|byte| byte.count_ones()).sum::<u32>(), 19);
    choose(&mut random, 16, 16, &mut bits);
    assert_eq!(bits, [255, 255]);
    choose(&mut random, 0, 0, &mut bits);
    assert!(bits.is_empty());
}

#[test]
fn partitions_are_even_and_exact_in_number_and_their_operations_too() {
    use ordain_model::KeyHash;
    use ordain_model::key::shard_of_slot;
    let mut clients = clients(Parameters {
        partitions: 8,
        multi_partition: 0.3,
        partitions_per_txn: 4,
        distribution: Distribution::Zipfian { theta: 0.99 },
        ..parameters(10_000, 10, 5)
    });
    let (mut several, mut by_partition) = (0, [0u32; 8]);
    const TXNS: u32 = 20_000;
    for _ in 0..TXNS {
        clients.next();
        let mut ops = [0; 8];
        for record in clients.population.drawn.records() {
            ops[shard_of_slot(KeyHash::of(&key(*record)).slot(), 8)] += 1;
        }
        let mut used: Vec<u32> = ops.into_iter().filter(|n| *n > 0).collect();
        used.sort_unstable();
        assert!(used == [10] || used == [2, 2, 3, 3], "{ops:?}");
        several += u32::from(used.len() == 4);
        (0..8).for_each(|p| by_partition[p] += u32::from(ops[p] > 0));
    }
    // Five standard deviations: sqrt(20,000 x 0.3 x 0.7) is 65.
    assert!((6_000 - 325..6_000 + 325).contains(&several), "{several}");
    let mean = f64::from(TXNS - several + 4 * several) / 8.0;
    for used in by_partition {
        assert!((f64::from(used) - mean).abs() < 5.0 * mean.sqrt(), "{by_partition:?}");
    }
}

#[test]
fn the_skew_is_inside_each_partition() {
    let parameters = Parameters { partitions: 4, distribution: SKEWED, ..parameters(4_000, 1, 0) };
    let mut clients = clients(parameters);
    let tops: Vec<u64> =
        Partition::divide(4_000, 4, key).iter().map(|partition| partition.record(0)).collect();
    let mut seen = [0u32; 4];
    for _ in 0..20_000 {
        clients.next();
        let record = clients.population.drawn.records()[0];
        tops.iter().zip(&mut seen).for_each(|(top, n)| *n += u32::from(*top == record));
    }
    // The first of about 1,000 ranks at 0.9 has 1 / sum r^-0.9 = 9.5% of a partition's quarter: 475.
    assert!(seen.iter().all(|n| (370..590).contains(n)), "{seen:?}");
}

#[test]
fn hot_operations_are_exact_in_number_and_the_others_spare_the_hot_records() {
    // PaxFlow's Table 1, and updates of all the hot records beside it (paxflow.md, section 7, E2).
    let mut clients = clients(Parameters {
        distribution: Distribution::Zipfian { theta: 0.99 },
        hot_records: 10,
        hot_ops: 10,
        read_only: 0.5,
        read_only_ops: Some(100),
        read_only_hot_ops: Some(1),
        ..parameters(100_000, 10, 10)
    });
    let scatter = Scatter::new(100_000);
    let hot: Vec<u64> = (0..10).map(|rank| scatter.place(rank)).collect();
    let (mut reads, mut first) = (0u32, 0u32);
    for _ in 0..4_000 {
        let made = clients.next();
        let records = clients.population.drawn.records();
        let of_hot = records.iter().filter(|record| hot.contains(record)).count();
        if made.kind == READ_ONLY {
            assert_eq!((records.len(), of_hot, written(&clients).len()), (100, 1, 0));
            reads += 1;
            first += u32::from(records[0] == hot[0]);
        } else {
            assert_eq!((records.len(), of_hot, written(&clients).len()), (10, 10, 10));
        }
    }
    assert!((1_840..2_160).contains(&reads), "{reads}");
    // The first of 10 ranks at 0.99 has 34% of the draws.
    assert!((580..780).contains(&first), "{first} of {reads}");
}

#[test]
fn a_seed_repeats_and_populations_differ() {
    let ycsb = Ycsb::new(parameters(1_000, 10, 5)).unwrap();
    let first = |seed, number| {
        let mut clients = Clients::new(&ycsb, seed, number, 2);
        clients.next();
        (clients.population.drawn.records().to_vec(), clients.packed)
    };
    assert_eq!(first(1, 0), first(1, 0));
    assert_ne!(first(1, 0), first(1, 1));
    assert_ne!(first(1, 0), first(2, 0));
}

#[test]
fn nonsense_is_refused_by_name() {
    let good = parameters(1_000, 10, 5);
    let refused = |parameters: Parameters| Ycsb::new(parameters).unwrap_err().to_string();
    for (parameters, name) in [
        (Parameters { records: 0, ..good.clone() }, "records"),
        (Parameters { record_bytes: 7, ..good.clone() }, "record_bytes"),
        (Parameters { record_bytes: MAX_VALUE_LEN + 1, ..good.clone() }, "record_bytes"),
        (Parameters { distribution: Distribution::Zipfian { theta: 1.0 }, ..good.clone() }, "theta 1.0"),
        (Parameters { ops_per_txn: 0, writes_per_txn: 0, ..good.clone() }, "ops_per_txn"),
        (Parameters { writes_per_txn: 11, ..good.clone() }, "writes_per_txn"),
        (Parameters { read_only: 1.1, ..good.clone() }, "read_only"),
        (Parameters { read_only_ops: Some(0), ..good.clone() }, "read_only_ops"),
        (Parameters { multi_partition: f64::NAN, ..good.clone() }, "multi_partition"),
        (Parameters { partitions: 0, ..good.clone() }, "partitions"),
        (Parameters { partitions: 1_025, ..good.clone() }, "partitions"),
        (Parameters { partitions: 2, partitions_per_txn: 3, ..good.clone() }, "partitions_per_txn"),
        (Parameters { multi_partition: 0.5, ..good.clone() }, "partitions_per_txn of 2"),
        (
            Parameters { partitions: 16, partitions_per_txn: 11, multi_partition: 0.1, ..good.clone() },
            "more than ops_per_txn",
        ),
        (Parameters { hot_ops: 1, ..good.clone() }, "hot_ops"),
        (Parameters { hot_records: 5, hot_ops: 6, ..good.clone() }, "different hot"),
        (Parameters { hot_records: 1_000, hot_ops: 1, ..good.clone() }, "different other"),
        (Parameters { partitions: 200, ..good.clone() }, "different other"),
    ] {
        assert!(refused(parameters).contains(name), "{name}");
    }
    assert!(Ycsb::new(good).is_ok());
}

#[test]
fn damaged_arguments_are_refused() {
    let bed = Bed::new();
    for (procedure, args) in [
        (RUN, &[][..]),
        (RUN, &[&[0u8; 8][..]]),
        (RUN, &[&[0; 7], &[1]]),
        (RUN, &[&[0; 8], &[1, 0]]),
        (LOAD, &[]),
        (LOAD, &[&[0; 3]]),
        (LOAD, &[&[0; 9], &[0; 4]]),
        (LOAD, &[&[0; 8], &[1, 0, 0, 1]]),
        (LOAD, &[&[0; 8], &[1; 8], &[1, 0, 128, 0]]),
    ] {
        assert!(bed.refuses(procedure, args), "{procedure} {args:?}");
    }
}
