//! What the runtime itself costs: messages within a loop and between two, timers, and the clock.
//!
//! `cargo bench -p ordain-runtime`. Latency is of one message at a time, there and back, with both loops asleep
//! in between unless they spin; throughput is of a window of messages under way.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to report")]

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use ordain_model::Micros;
use ordain_role::{Address, Event, NodeId, Now, Outbox, Role, TimerId};
use ordain_runtime::{Clock, LoopSpec, Options, Runtime};

/// As large as a message of a node: a few pointers.
#[derive(Clone, Copy)]
struct Msg([u64; 6]);

const PLAYER: u16 = 1;
const ECHO: u16 = 2;

fn at(role: u16) -> Address {
    Address { node: NodeId(0), role }
}

struct Echo;

impl Role for Echo {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        if let Event::Message { from, message } = event {
            out.send(from, message);
        }
    }

    fn name(&self) -> &'static str {
        "echo"
    }
}

/// Keeps `window` messages under way until `count` have come back.
struct Player {
    window: u64,
    count: u64,
    back: u64,
    sent_at: Instant,
    trips: Vec<Duration>,
    done: Sender<Vec<Duration>>,
}

impl Player {
    fn new(window: u64, count: u64, done: Sender<Vec<Duration>>) -> Player {
        Player { window, count, back: 0, sent_at: Instant::now(), trips: Vec::new(), done }
    }
}

impl Role for Player {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        match event {
            Event::Start => (0..self.window).for_each(|i| out.send(at(ECHO), Msg([i; 6]))),
            Event::Message { message, .. } => {
                self.back += 1;
                if self.window == 1 {
                    self.trips.push(self.sent_at.elapsed());
                }
                if self.back + self.window <= self.count {
                    out.send(at(ECHO), Msg([message.0[0] + 1; 6]));
                } else if self.back == self.count {
                    let _ = self.done.send(std::mem::take(&mut self.trips));
                }
            }
            _ => {}
        }
        if self.window == 1 {
            self.sent_at = Instant::now();
        }
    }

    fn name(&self) -> &'static str {
        "player"
    }
}

/// Sets a timer again and again and notes how late it fires.
struct Late {
    delay: Micros,
    set_at: Now,
    late: Vec<Duration>,
    done: Sender<Vec<Duration>>,
}

impl Role for Late {
    type Message = Msg;

    fn handle(&mut self, now: Now, event: Event<Msg>, out: &mut Outbox<Msg>) {
        if let Event::Timer(_) = event {
            self.late.push(Duration::from_micros(now.elapsed.since(self.set_at.elapsed.plus(self.delay)).0));
            if self.late.len() == 2_000 {
                let _ = self.done.send(std::mem::take(&mut self.late));
                return;
            }
        }
        self.set_at = now;
        out.set_timer(TimerId(0), self.delay);
    }

    fn name(&self) -> &'static str {
        "late"
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let [p50, p99] = [50, 99].map(|p| percentile(&times, p));
    println!("{name:<44} p50 {p50:>10.2?}   p99 {p99:>10.2?}");
}

fn play(name: &str, spin: Duration, window: u64, count: u64, split: bool) {
    let (done, finished) = channel();
    let player = Player::new(window, count, done);
    let loops = if split {
        vec![LoopSpec::new("a").role(PLAYER, player), LoopSpec::new("b").role(ECHO, Echo)]
    } else {
        vec![LoopSpec::new("a").role(PLAYER, player).role(ECHO, Echo)]
    };
    let start = Instant::now();
    let running = Runtime::start(Options { spin, ..Options::default() }, None, loops).unwrap();
    let trips = finished.recv().unwrap();
    let took = start.elapsed();
    let handle = running.handle();
    running.stop().unwrap();
    if window == 1 {
        report(name, trips);
    } else {
        let (mut sleeps, mut cpu) = (0, Duration::ZERO);
        handle.inspect(|snapshot| {
            sleeps += snapshot.sleeps;
            cpu += snapshot.cpu;
        });
        // Each round trip is two messages.
        let nanos = took.as_nanos() as f64 / (2 * count) as f64;
        let cpu = cpu.as_nanos() as f64 / (2 * count) as f64;
        println!("{name:<44} {nanos:>7.0} ns a message, {cpu:>5.0} ns of CPU, {sleeps} sleeps");
    }
}

fn late(delay: Micros) {
    let (done, finished) = channel();
    let role = Late { delay, set_at: Now::default(), late: Vec::new(), done };
    let running =
        Runtime::start(Options::default(), None, vec![LoopSpec::new("a").role(PLAYER, role)]).unwrap();
    report(&format!("how late a timer of {delay} us fires"), finished.recv().unwrap());
    running.stop().unwrap();
}

fn main() {
    let clock = Clock::start();
    let start = Instant::now();
    let now = (0..1_000_000).fold(clock.now(), |now, _| clock.since(now));
    println!("{:<44} {:>7.0} ns", "one look at the clock", start.elapsed().as_nanos() as f64 / 1e6);
    assert!(now.elapsed >= Micros(0));

    play("round trip, one loop", Duration::ZERO, 1, 200_000, false);
    play("round trip, two loops, asleep", Duration::ZERO, 1, 20_000, true);
    play("round trip, two loops, spinning 50 us", Duration::from_micros(50), 1, 20_000, true);
    for window in [16, 64, 512] {
        play(&format!("one loop, {window} under way"), Duration::ZERO, window, 2_000_000, false);
        play(&format!("two loops, {window} under way"), Duration::ZERO, window, 2_000_000, true);
    }
    late(Micros(100));
    late(Micros(1_000));
}
