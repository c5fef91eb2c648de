//! What it costs to make up load: draws of each distribution, and whole transactions. The driver's share of a run
//! stays small only if a draw stays below 200 ns.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ordain_model::ArgsBuilder;
use ordain_workload::Workload;
use ordain_workload::choice::{Choice, Distribution};
use ordain_workload::random::Random;
use ordain_workload::ycsb::{Parameters, Ycsb};

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
    let mut txns = c.benchmark_group("operations of transactions of ten");
    txns.throughput(Throughput::Elements(10));
    let skewed =
        |theta| Parameters { records: RECORDS, distribution: zipfian(theta), ..Parameters::default() };
    let partitioned =
        Parameters { partitions: 4, multi_partition: 0.5, partitions_per_txn: 2, ..skewed(0.9) };
    for (name, parameters) in
        [("ycsb uniform", skewed(0.0)), ("ycsb zipfian 0.9", skewed(0.9)), ("ycsb 4 partitions", partitioned)]
    {
        let ycsb = Ycsb::new(parameters).expect("the parameters are good");
        let mut source = ycsb.source(1, 0, 1);
        let mut buffer = Vec::new();
        txns.bench_function(name, |b| {
            b.iter(|| {
                buffer.clear();
                black_box(source.next());
                source.write_args(&mut ArgsBuilder::new(&mut buffer));
                buffer.len()
            });
        });
    }
    txns.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
