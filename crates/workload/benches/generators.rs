//! What it costs to make up load: draws of each distribution, and whole transactions. The driver's share of a
//! run stays small only if a draw stays below 200 ns.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ordain_model::ArgsBuilder;
use ordain_model::Random;
use ordain_workload::Workload;
use ordain_workload::append::{self, Append};
use ordain_workload::bank::{self, Bank};
use ordain_workload::choice::{Choice, Distribution};
use ordain_workload::micro::{Calvin, Micro, Regions};
use ordain_workload::tpcc::{self, Tpcc};
use ordain_workload::ycsb::{self, Ycsb};

const RECORDS: u64 = 1_000_000;

fn benches(c: &mut Criterion) {
    let mut draws = c.benchmark_group("draws");
    draws.throughput(Throughput::Elements(1));
    let zipfian = |theta| Distribution::Zipfian { theta };
    for (name, distribution) in [
        ("uniform", zipfian(0.0)),
        ("zipfian 0.6", zipfian(0.6)),
        ("zipfian 0.99", zipfian(0.99)),
        ("zipfian 1.2", zipfian(1.2)),
        ("hot set", Distribution::HotSet { hot: 100, share: 0.5 }),
    ] {
        let choice = Choice::new(RECORDS, distribution).expect("the parameters are good");
        let mut random = Random::new(1);
        draws.bench_function(name, |b| b.iter(|| choice.draw(&mut random)));
    }
    draws.finish();
    whole_transactions(c);
}

fn whole_transactions(c: &mut Criterion) {
    let skewed = |theta| ycsb::Parameters {
        records: RECORDS,
        distribution: Distribution::Zipfian { theta },
        ..ycsb::Parameters::default()
    };
    let ycsb = |parameters| -> Box<dyn Workload> {
        Box::new(Ycsb::new(parameters).expect("the parameters are good"))
    };
    let micro = |parameters| -> Box<dyn Workload> {
        Box::new(Micro::calvin(parameters).expect("the parameters are good"))
    };
    let partitioned =
        ycsb::Parameters { partitions: 4, multi_partition: 0.5, partitions_per_txn: 2, ..skewed(0.9) };
    // The Q-Store paper's defaults, with all the records of one of its servers.
    let qstore = ycsb::Parameters {
        records: 16_000_000,
        partitions: 16,
        multi_partition: 0.5,
        partitions_per_txn: 8,
        ops_per_txn: 16,
        writes_per_txn: 8,
        ..skewed(0.0)
    };
    // PaxFlow's Table 1.
    let paxflow =
        ycsb::Parameters { ops_per_txn: 100, hot_records: 10, hot_ops: 1, read_only: 1.0, ..skewed(0.99) };
    // FW-KV's transactions.
    let fwkv = ycsb::Parameters {
        record_bytes: 12,
        ops_per_txn: 2,
        writes_per_txn: 2,
        read_only: 0.5,
        ..skewed(0.0)
    };
    let regions = Micro::regions(Regions { read_only: 0.5, ..Regions::default() });
    let bank = Bank::new(bank::Parameters::default()).expect("the parameters are good");
    let append = Append::new(append::Parameters::default()).expect("the parameters are good");
    let tpcc = |mix| -> Box<dyn Workload> {
        let parameters = tpcc::Parameters { warehouses: 10, mix, ..tpcc::Parameters::default() };
        Box::new(Tpcc::new(parameters).expect("the parameters are good"))
    };
    let workloads: [(&str, Box<dyn Workload>); 12] = [
        ("ycsb uniform", ycsb(skewed(0.0))),
        ("ycsb zipfian 0.9", ycsb(skewed(0.9))),
        ("ycsb zipfian 0.9, 4 partitions", ycsb(partitioned)),
        ("ycsb of q-store", ycsb(qstore)),
        ("ycsb of paxflow", ycsb(paxflow)),
        ("ycsb of fw-kv", ycsb(fwkv)),
        ("micro of calvin", micro(Calvin::default())),
        ("micro of regions", Box::new(regions.expect("the parameters are good"))),
        ("bank", Box::new(bank)),
        ("append", Box::new(append)),
        ("tpcc", tpcc(tpcc::Mix::FULL)),
        ("tpcc, new orders alone", tpcc(tpcc::Mix::NEW_ORDER)),
    ];
    let mut group = c.benchmark_group("operations");
    for (name, workload) in workloads {
        let mut source = workload.source(1, 0, 1);
        // The average of the kinds as they come; each turn of the bench is a hundred transactions.
        let kinds = workload.accesses();
        let ops: f64 = (0..10_000).map(|_| kinds[usize::from(source.next().kind)]).sum();
        let mut buffer = Vec::new();
        group.throughput(Throughput::Elements((ops / 100.0).round() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                buffer.clear();
                for _ in 0..100 {
                    black_box(source.next());
                    source.write_args(&mut ArgsBuilder::new(&mut buffer));
                }
                buffer.len()
            });
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
