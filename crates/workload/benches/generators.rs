//! What it costs to make up load: draws of each distribution, and whole transactions. The driver's share of a run
//! stays small only if a draw stays below 200 ns.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ordain_model::ArgsBuilder;
use ordain_workload::Source;
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
    for theta in [0.0, 0.9] {
        let choice = Choice::new(RECORDS, zipfian(theta)).expect("the parameters are good");
        let parameters = Parameters { choice, ops_per_txn: 10, writes_per_txn: 5, record_bytes: 100 };
        let mut source = Ycsb::new(parameters, 1, 0, 1);
        let mut buffer = Vec::new();
        txns.bench_function(format!("theta {theta}"), |b| {
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
