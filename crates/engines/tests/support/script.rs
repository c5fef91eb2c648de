//! The language of the golden transcripts: one scenario a file, one command a line, what it shows beneath it.
//!
//! A line that begins with `>` is what the command above it showed; `#` begins a comment. The commands stand
//! where they are dispatched, in [`Script::command`]. Roles are called `g0`, `sequencer`, `log`, `shard0`; a link
//! is `shard0->shard1`. A word `name@1` is a key that lies on shard 1.

use std::collections::BTreeMap;
use std::fmt::Write;

use ordain_deterministic::shard::{Item, ShardMessage};
use ordain_engines::calvin_paper;
use ordain_gateway::Ticket;
use ordain_model::args::encode;
use ordain_model::{Call, Db, Epoch, Gsn, KeyHash, Micros, PartitionId, RequestNo, SessionId};
use ordain_sim::workload::procedures as p;
use ordain_store::RecordStore;

use super::{Bench, GATEWAY, LOCK_MANAGER, LOG, Options, SEQUENCER, SHARD, gauge, key_on, render};

/// A script under way.
#[derive(Default)]
pub struct Script {
    bench: Option<Bench>,
    /// Keys by the word that stands for them, with their shards.
    keys: BTreeMap<String, (usize, Vec<u8>)>,
    tickets: Vec<Ticket>,
}

type Shown = Result<String, String>;

/// Runs a transcript and returns it with what its commands show now.
pub fn run(transcript: &str) -> String {
    let mut script = Script::default();
    let mut out = String::new();
    for line in transcript.lines().filter(|line| !line.starts_with('>')) {
        out.push_str(line);
        out.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let shown = script.command(line).unwrap_or_else(|reason| format!("error: {reason}"));
        shown.lines().for_each(|shown| _ = writeln!(out, "> {shown}"));
    }
    out
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is not a number"))
}

fn role(name: &str) -> Result<u16, String> {
    Ok(match name {
        "sequencer" => SEQUENCER,
        "log" => LOG,
        "lock-manager" => LOCK_MANAGER,
        _ => match (name.strip_prefix("shard"), name.strip_prefix('g')) {
            (Some(shard), _) => SHARD + number::<u16>(shard)?,
            (_, Some(gateway)) => GATEWAY + number::<u16>(gateway)?,
            _ => return Err(format!("{name} is no role")),
        },
    })
}

fn name_of(role: u16) -> String {
    match role {
        SEQUENCER => "sequencer".into(),
        LOG => "log".into(),
        LOCK_MANAGER => "lock-manager".into(),
        shard if shard < GATEWAY => format!("shard{}", shard - SHARD),
        gateway => format!("g{}", gateway - GATEWAY),
    }
}

fn link(word: &str) -> Result<(u16, u16), String> {
    let (from, to) = word.split_once("->").ok_or_else(|| format!("{word} is no link"))?;
    Ok((role(from)?, role(to)?))
}

/// Sends a shard's vote on a transaction, EPOCH.INDEX, before that shard has voted.
fn vote(bench: &mut Bench, (from, to): (u16, u16), gsn: &str) -> Shown {
    let (epoch, index) = gsn.split_once('.').ok_or("a transaction is EPOCH.INDEX")?;
    let gsn = Gsn::new(Epoch(number(epoch)?), PartitionId(0), number(index)?);
    let items = vec![(gsn, Item::Vote(None))];
    let remote_result = ShardMessage { from: (from - SHARD) as usize, items, bytes: Vec::new() };
    bench.inject(from, to, ordain_deterministic::sequencing::Message::Engine(remote_result));
    Ok(String::new())
}

/// The database in which the simulator's workload calls a procedure.
fn db_of(procedure: &str) -> Db {
    match procedure {
        "sim.transfer" | "sim.skim" | "sim.audit" => p::ACCOUNTS,
        "sim.rotate" | "sim.compute" | "sim.panic" => p::CELLS,
        "sim.append" => p::LISTS,
        "sim.increment" | "sim.even" => p::COUNTERS,
        "sim.dependent" | "sim.repoint" => p::POINTERS,
        "sim.insert" | "sim.delete" | "sim.put" | "sim.count" | "sim.clear" => p::OBJECTS,
        _ => Db(0),
    }
}

impl Script {
    /// The language.
    fn command(&mut self, line: &str) -> Shown {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["node", settings @ ..] = &*words {
            return self.node(settings);
        }
        let bench = self.bench.as_mut().ok_or("the first command is `node`")?;
        match &*words {
            // submit GATEWAY [SESSION/REQUEST] [db=N] PROCEDURE WORDS…: hands a request to a gateway, which gathers.
            ["submit", gateway, request @ ..] => self.submit(gateway, request),
            // flush GATEWAY: the gateway sends what it has gathered.
            ["flush", gateway] => {
                bench.flush((role(gateway)? - GATEWAY) as usize);
                Ok(String::new())
            }
            // send …: submit and flush.
            ["send", gateway, request @ ..] => {
                let shown = self.submit(gateway, request)?;
                let gateway = (role(gateway)? - GATEWAY) as usize;
                self.bench.iter_mut().for_each(|bench| bench.flush(gateway));
                Ok(shown)
            }
            // deliver LINK [N]: delivers the next message of a link, or the next N.
            ["deliver", name, rest @ ..] => {
                let (from, to) = link(name)?;
                for _ in 0..rest.first().map_or(Ok(1), |n| number(n))? {
                    if !bench.deliver(from, to) {
                        return Err(format!("nothing on {name}"));
                    }
                }
                Ok(String::new())
            }
            // disk: carries out the log's oldest disk request.
            ["disk"] if bench.disk_step() => Ok(String::new()),
            ["disk"] => Err("the disk has nothing to do".into()),
            // hold LINK | disk, release LINK | disk: keeps what comes there from `run`.
            [verb @ ("hold" | "release"), "disk"] => {
                bench.disk_held = *verb == "hold";
                Ok(String::new())
            }
            ["hold", name] => {
                let (from, to) = link(name)?;
                bench.hold(from, to);
                Ok(String::new())
            }
            ["release", name] => {
                let (from, to) = link(name)?;
                bench.release(from, to);
                Ok(String::new())
            }
            // run: delivers everything that is not held, in the seed's order.
            ["run"] => {
                bench.settle();
                Ok(bench.halted.iter().map(|reason| format!("halted: {reason}")).collect())
            }
            // advance MS: lets time pass. wall MS: sets the wall clock.
            ["advance", ms] => {
                bench.advance(Micros::from_millis(number(ms)?));
                Ok(String::new())
            }
            ["wall", ms] => {
                bench.now.wall = Micros::from_millis(number(ms)?);
                Ok(String::new())
            }
            // disk capacity BYTES: how much fits on the disk. disk full, disk spacious: whether it refuses everything.
            ["disk", "capacity", bytes] => {
                bench.directory.set_capacity(Some(number(bytes)?));
                Ok(String::new())
            }
            ["disk", state @ ("full" | "spacious")] => {
                bench.directory.set_full_from((*state == "full").then_some(0));
                Ok(String::new())
            }
            // crash: loses power and starts again.
            ["crash"] => {
                bench.crash();
                let replayed: usize = bench.recovered.iter().map(|batch| batch.txns().count()).sum();
                Ok(format!("replayed {} batches, {replayed} transactions", bench.recovered.len()))
            }
            // vote LINK EPOCH.INDEX: a shard says of a transaction, before it has voted, that its checks have passed.
            ["vote", name, gsn] => {
                let (from, to) = link(name)?;
                vote(bench, (from, to), gsn)
            }
            // verify: everything is over, and as the reference executor has it.
            ["verify"] => {
                bench.verify();
                Ok("ok".into())
            }
            // show outcomes | sealed | links | shards | locks
            ["show", what] => self.show(what),
            _ => Err("not a command".into()),
        }
    }

    /// node NAME=N…: a node, with `shards`, `gateways`, `window`, `cap` (transactions a batch), `lag`, `linger` (ms),
    /// `backlog`, `seed`, `log` (0 or 1), `segment` (bytes) and `lock-manager` (0 or 1: one of the node grants to its shards).
    fn node(&mut self, settings: &[&str]) -> Shown {
        let mut options = Options::default();
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or("a setting is NAME=N")?;
            let n: u64 = number(value)?;
            match name {
                "shards" => options.shards = n as usize,
                "gateways" => options.gateways = n as usize,
                "window" => options.window = n as usize,
                "cap" => options.sequencer.batch_cap = n as u32,
                "lag" => options.sequencer.lag_max = n,
                "linger" => options.sequencer.linger = Micros::from_millis(n),
                "backlog" => options.sequencer.backlog_max = n as usize,
                "seed" => options.seed = n,
                "log" => options.log = n != 0,
                "lock-manager" if n != 0 => options.scheduling = calvin_paper::SCHEDULING,
                "segment" => options.segment_bytes = n,
                _ => return Err(format!("{name} is no setting")),
            }
        }
        self.bench = Some(Bench::new(options));
        Ok(String::new())
    }

    fn submit(&mut self, gateway: &str, mut request: &[&str]) -> Shown {
        let Script { bench, keys, tickets } = self;
        let bench = bench.as_mut().ok_or("no node")?;
        let mut session = None;
        if let Some((id, no)) = request.first().and_then(|word| word.split_once('/')) {
            session = Some((SessionId(number(id)?), RequestNo(number(no)?)));
            request = &request[1..];
        }
        let mut db = None;
        if let Some(n) = request.first().and_then(|word| word.strip_prefix("db=")) {
            db = Some(Db(number(n)?));
            request = &request[1..];
        }
        let (name, words) = request.split_first().ok_or("no procedure")?;
        let procedure = bench.registry.find(name).ok_or_else(|| format!("{name} is no procedure"))?;
        let mut args = Vec::new();
        for word in words {
            args.push(match word.split_once('@') {
                Some((key, shard)) => {
                    let shard = number(shard)?;
                    let bytes = key_on(key, shard, bench.options.shards);
                    keys.insert((*word).into(), (shard, bytes.clone()));
                    bytes
                }
                None => word.as_bytes().to_vec(),
            });
        }
        let call = Call { session, ..Call::new(procedure, db.unwrap_or(db_of(name))) };
        let gateway = (role(gateway)? - GATEWAY) as usize;
        match bench.submit(gateway, call, &encode(&args)) {
            Ok(ticket) => {
                tickets.push(ticket);
                Ok(format!("t{}", ticket.0))
            }
            Err(refusal) => Ok(format!("refused: {refusal}")),
        }
    }

    fn show(&self, what: &str) -> Shown {
        let bench = self.bench.as_ref().ok_or("no node")?;
        let mut out = String::new();
        match what {
            "outcomes" => {
                for ticket in &self.tickets {
                    match bench.answer(*ticket) {
                        Some(a) => {
                            let status = format!("{:?}", a.status).to_lowercase();
                            let line = format!("t{} {status} {} {}", ticket.0, a.gsn, render(&a.reply));
                            _ = writeln!(out, "{}", line.trim_end());
                        }
                        None => _ = writeln!(out, "t{} -", ticket.0),
                    }
                }
            }
            "sealed" => {
                for batch in &bench.sealed {
                    let txns: Vec<String> = batch
                        .txns()
                        .map(|(_, _, txn)| bench.registry.name(txn.call.procedure).unwrap_or("?").to_string())
                        .collect();
                    let Epoch(epoch) = batch.epoch;
                    let (now, lookups) = (batch.now, batch.lookups.len());
                    _ = writeln!(out, "epoch {epoch} at {now}: {} ({lookups} lookups)", txns.join(" "));
                }
            }
            "links" => {
                for ((from, to), queue) in bench.links.iter().filter(|(_, queue)| !queue.is_empty()) {
                    _ = writeln!(out, "{}->{}: {}", name_of(*from), name_of(*to), queue.len());
                }
                if !bench.disk.is_empty() {
                    _ = writeln!(out, "disk: {}", bench.disk.len());
                }
            }
            "shards" => {
                for (n, shard) in bench.shards.iter().enumerate() {
                    let (applied, in_flight) = (shard.applied().0, gauge(shard, "ordain_shard_in_flight"));
                    let early = gauge(shard, "ordain_shard_out_of_order_items");
                    _ = writeln!(
                        out,
                        "shard{n}: applied {applied}, in flight {in_flight}, out of order {early}"
                    );
                }
            }
            "locks" if let Some(lock_manager) = &bench.lock_manager => {
                for name in ["in_flight", "locked_keys", "waited_for_lock_total", "grants_total"] {
                    let value = gauge(lock_manager, &format!("ordain_lock_manager_{name}"));
                    _ = writeln!(out, "lock-manager: {name} {value}");
                }
            }
            "locks" => {
                for (word, (shard, key)) in &self.keys {
                    for db in (0..16).map(Db) {
                        let store = bench.shards[*shard].store();
                        let record = store.find(db, key, KeyHash::of(key));
                        if record.is_some_and(|record| store.lock(record) != 0) {
                            _ = writeln!(out, "{word} in db {db}");
                        }
                    }
                }
                for (n, shard) in bench.shards.iter().enumerate() {
                    _ = writeln!(out, "shard{n}: {}", gauge(shard, "ordain_shard_locked_records"));
                }
            }
            _ => return Err(format!("nothing called {what} to show")),
        }
        Ok(out)
    }
}
