//! Clients that speak bytes: what they send is drawn, and what they are answered is judged.
//!
//! Each speaks over one connection at a time, in a closed loop: a pipeline of transactions, or one of several steps, and then a
//! pause. A connection may break at any byte; what was not answered then may have happened or not. A client with a session
//! asks again under the same number, at any node, until it knows.

mod speech;
mod unit;

use std::collections::{BTreeSet, VecDeque};

use ordain_checker::{Violation, ViolationKind};
use ordain_model::{Db, Micros, Random};
use ordain_resp::client::{Reply, write_command};
use ordain_role::NodeId;

use self::speech::Speech;
pub(crate) use self::speech::Terms;
pub(crate) use self::unit::list_key;
use self::unit::{DRAWS, Expected, Form, Kind, ListOp, Pair, SCRIPT, Unexpected, Unit, draw_ops, library};
use super::ConnectionNo;
use crate::faults::Fault;
use crate::load::Load;
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;

/// The sessions of such clients begin here: those that call procedures have smaller numbers.
const SESSIONS: u64 = 1_000_000;
/// The longest time that a client pauses before it connects again.
const REDIAL_US_MAX: u64 = 4_000;

/// The longest time that a client pauses before it asks again what was not taken.
const TURNED_AWAY_US_MAX: u64 = 20_000;

/// A request of a session that is not known to have ended.
#[derive(Clone, Debug)]
struct Retry {
    number: u64,
    base: u64,
    ops: Vec<ListOp>,
    form: Form,
    request: ordain_checker::RequestId,
}

/// An iteration over the keys, as far as it has come.
#[derive(Clone, Debug)]
struct Iteration {
    begun: ordain_checker::history::Moment,
    found: BTreeSet<String>,
}

/// A client that speaks bytes.
#[derive(Debug)]
struct Speaker {
    connection: Option<ConnectionNo>,
    /// Connections so far.
    connections: u32,
    input: Vec<u8>,
    /// What was sent and is not answered whole, in order.
    units: VecDeque<Unit>,
    session: Option<u64>,
    /// Requests of its session so far.
    requests: u64,
    retry: Option<Retry>,
    iteration: Option<Iteration>,
    /// The script's name, once a load of it was answered.
    script: Option<Vec<u8>>,
    has_function: bool,
    /// The keys with a limited time that it has written: their numbers.
    mortals: Vec<usize>,
    /// Keys that it has written or removed so far.
    changes: u64,
    /// It is to say something at a time that is scheduled.
    is_pausing: bool,
}

impl Speaker {
    const fn new(session: Option<u64>) -> Speaker {
        Speaker {
            connection: None,
            connections: 0,
            input: Vec::new(),
            units: VecDeque::new(),
            session,
            requests: 0,
            retry: None,
            iteration: None,
            script: None,
            has_function: false,
            mortals: Vec::new(),
            changes: 0,
            is_pausing: false,
        }
    }
}

/// All clients that speak bytes, and what they have said and heard.
#[derive(Debug, Default)]
pub(crate) struct Speakers {
    all: Vec<Speaker>,
    pub(crate) speech: Speech,
}

impl Speakers {
    /// Whether one waits for a reply, or has a request that it must ask again.
    pub(crate) fn wait(&self) -> bool {
        self.all.iter().any(|speaker| !speaker.units.is_empty() || speaker.retry.is_some())
    }
}

impl<S: System> Simulator<'_, S> {
    /// The clients that speak bytes begin.
    pub(crate) fn add_speakers(&mut self) {
        self.speakers.speech.flushes = self.config.flushes;
        self.speakers.speech.steps = self.config.steps;
        for number in 0..self.config.speakers as usize {
            let has_session = self.connections.random.chance(400_000);
            let session =
                has_session.then_some((u64::from(self.config.spoken_db.0) << 32) + SESSIONS + number as u64);
            self.speakers.all.push(Speaker::new(session));
            self.speak_soon(number, Load::think);
        }
    }

    /// Has a client speak after a time that `draw` gives in virtual microseconds, unless its next time is scheduled.
    fn speak_soon(&mut self, number: usize, draw: impl FnOnce(&Load, &mut Random) -> u64) {
        if !std::mem::replace(&mut self.speakers.all[number].is_pausing, true) {
            let delay = draw(&self.config.load, &mut self.connections.random);
            self.after(delay, Happening::Speak { speaker: number });
        }
    }

    /// Has a client without a connection look for another.
    fn dial_soon(&mut self, number: usize) {
        self.speak_soon(number, |_, random| random.tail(REDIAL_US_MAX));
    }

    /// A client has paused: it connects, or says the next thing.
    pub(crate) fn speak(&mut self, number: usize) {
        self.speakers.all[number].is_pausing = false;
        let is_done = self.healed || self.has_asked_enough();
        let speaker = &self.speakers.all[number];
        if !speaker.units.is_empty() || (is_done && speaker.retry.is_none() && speaker.iteration.is_none()) {
            return;
        }
        if self.now < self.rests_until && !self.healed {
            self.speakers.all[number].is_pausing = true;
            let at = self.rests_until.plus(Micros(self.config.load.think(&mut self.connections.random)));
            return self.at(at, Happening::Speak { speaker: number });
        }
        let mut out = Vec::new();
        if speaker.connection.is_none() && !self.open_speaker(number, &mut out) {
            return self.dial_soon(number);
        }
        let Simulator { connections, speakers: Speakers { all, speech }, now, history, config, .. } = self;
        speech.now = *now;
        let clocks_are_true = !config.faults.has(Fault::Clock);
        let window = history.len() as u64 / 60;
        let mut draw = Draw { speech, random: &mut connections.random, window, clocks_are_true };
        draw.next(number, &mut all[number], &mut out);
        self.say(number, &out);
        self.rest_after_wave();
        self.draw_trouble(number);
    }

    /// Connects to any node that is up, and greets it. False if none takes the connection.
    fn open_speaker(&mut self, number: usize, out: &mut Vec<u8>) -> bool {
        let up: Vec<u16> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].up).map(|node| node as u16).collect();
        if up.is_empty() {
            return false;
        }
        let node = NodeId(up[self.connections.random.index(up.len())]);
        let Some(connection) = self.dial_for(node, Some(number)) else { return false };
        let speaker = &mut self.speakers.all[number];
        speaker.connection = Some(connection);
        speaker.connections += 1;
        speaker.input.clear();
        speaker.units.clear();
        if self.connections.random.chance(500_000) {
            let version: &[u8] = [&b"2"[..], b"3"][self.connections.random.index(2)];
            write_command(&[b"HELLO", version], out);
            speaker.units.push_back(Unit::alone(Kind::Word, Expected::Value));
        }
        let Db(db) = self.config.spoken_db;
        if db > 0 {
            write_command(&[b"SELECT", db.to_string().as_bytes()], out);
            speaker.units.push_back(Unit::alone(Kind::Word, Expected::Status("OK")));
        }
        if let Some(session) = speaker.session {
            write_command(&[b"CLIENT", b"SESSION", session.to_string().as_bytes()], out);
            speaker.units.push_back(Unit::alone(Kind::Word, Expected::Status("OK")));
        }
        true
    }

    fn say(&mut self, number: usize, bytes: &[u8]) {
        if let Some(connection) = self.speakers.all[number].connection.filter(|_| !bytes.is_empty()) {
            self.send_bytes(connection, bytes);
        }
    }

    /// Now and then something becomes of the connection while it is spoken over, unless nothing is to go wrong.
    fn draw_trouble(&mut self, number: usize) {
        let Some(connection) = self.speakers.all[number].connection else { return };
        if self.healed || self.intensity.is_calm() {
            return;
        }
        let random = &mut self.connections.random;
        let delay = random.tail(4 * self.intensity.link_delay_us_max + 2_000);
        let patience = random.between(20_000, 400_000);
        match random.below(100) {
            0..3 => self.after(delay, Happening::Reset { connection: connection.0 }),
            3 => self.close_half(connection),
            4 => self.lose_connection(number, connection),
            _ => {}
        }
        self.after(patience, Happening::Weary { speaker: number, connection });
    }

    /// A client has waited long enough, if it still waits over that connection.
    pub(crate) fn weary(&mut self, number: usize, connection: ConnectionNo) {
        let speaker = &self.speakers.all[number];
        if speaker.connection == Some(connection) && !speaker.units.is_empty() && !self.healed {
            self.lose_connection(number, connection);
        }
    }

    /// A client leaves a connection, of which nobody else hears yet.
    fn lose_connection(&mut self, number: usize, connection: ConnectionNo) {
        self.close(connection);
        self.hung_up(number);
    }

    /// A client has no connection any more: what was not answered stays unknown.
    fn hung_up(&mut self, number: usize) {
        let speaker = &mut self.speakers.all[number];
        speaker.connection = None;
        speaker.units.clear();
        speaker.input.clear();
        speaker.iteration = None;
        self.dial_soon(number);
    }

    /// Something has arrived for a client, or its connection is over.
    pub(crate) fn speaker_hears(&mut self, number: usize, connection: ConnectionNo) {
        if self.speakers.all[number].connection != Some(connection) {
            return;
        }
        let bytes = self.received(connection);
        self.speakers.all[number].input.extend(bytes);
        let mut at = 0;
        loop {
            let read = Reply::read(&self.speakers.all[number].input[at..]);
            let (reply, len) = match read {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(none) => return self.speaker_fails(number, &none.to_string()),
            };
            at += len;
            self.trace.note(self.now, format_args!("client {number} hears {reply:?}"));
            if let Err(Unexpected(text)) = self.take_reply(number, reply) {
                return self.speaker_fails(number, &text);
            }
        }
        self.speakers.all[number].input.drain(..at);
        if self.is_over(connection) {
            self.hung_up(number);
        }
    }

    fn speaker_fails(&mut self, number: usize, text: &str) {
        let text = format!("client {number} of bytes was sent {text}");
        self.fail(Violation::new(ViolationKind::WrongAnswer, text));
    }

    fn take_reply(&mut self, number: usize, reply: Reply) -> Result<(), Unexpected> {
        let mut out = Vec::new();
        let Simulator { connections, speakers: Speakers { all, speech }, now, .. } = self;
        speech.now = *now;
        let speaker = &mut all[number];
        let Some(unit) = speaker.units.front_mut() else {
            return Err(Unexpected(format!("{reply:?}, and nothing is owed")));
        };
        unit.take(reply)?;
        let goes_on = unit.expected.is_empty() && unit.go_on(&mut out);
        if unit.expected.is_empty()
            && !goes_on
            && let Some(unit) = speaker.units.pop_front()
        {
            speech.finish(speaker, &unit, &mut out, &mut connections.random)?;
        }
        let (is_free, is_turned_away) = (speaker.units.is_empty(), speaker.retry.is_some());
        self.say(number, &out);
        if is_free {
            self.speak_soon(number, |load, random| match is_turned_away {
                true => random.tail(TURNED_AWAY_US_MAX.max(load.think_us_max)),
                false => load.think(random),
            });
        }
        Ok(())
    }
}

/// Draws what a client says next.
struct Draw<'a> {
    speech: &'a mut Speech,
    random: &'a mut Random,
    /// The lists that are used now: they change in time, so that none becomes long.
    window: u64,
    clocks_are_true: bool,
}

impl Draw<'_> {
    fn next(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        if self.speech.flushes && self.random.chance(15_000) {
            let word: &[u8] = if self.random.chance(800_000) { b"FLUSHALL" } else { b"FLUSHDB" };
            write_command(&[word], out);
            return speaker.units.push_back(Unit::alone(Kind::Word, Expected::Status("OK")));
        }
        if speaker.session.is_some() {
            return self.session(number, speaker, out);
        }
        let drawn = match self.speech.steps {
            true => [67, 67, 67, 0][self.random.index(4)],
            false => self.random.below(100),
        };
        match drawn {
            0..51 => self.pipeline(number, speaker, out),
            51..55 => self.pair(number, speaker, out),
            55..67 => {
                let list = self.window * 4 + self.random.below(4);
                let ops = [false, true].map(|appends| ListOp { list, appends }).to_vec();
                self.steps(number, speaker, ops, Kind::CompareAndSet { is_sent: false }, out);
            }
            67..79 => {
                let (mut ops, aborts) = (draw_ops(self.random, self.window, 4), self.random.chance(150_000));
                if self.random.chance(200_000) {
                    // All of it is read in one state.
                    ops.iter_mut().for_each(|op| op.appends = false);
                }
                let kind = Kind::Interactive { sent: 0, aborts, is_over: false };
                self.steps(number, speaker, ops, kind, out);
            }
            79..83 => self.load(speaker, out),
            83..91 => self.mortal(number, speaker, out),
            91..97 => self.change(number, speaker, out),
            _ => {
                speaker.iteration = Some(Iteration { begun: self.speech.moment(), found: BTreeSet::new() });
                scan(b"0", speaker, out, self.random);
            }
        }
    }

    /// The next request of a session, or the last one again.
    fn session(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        let retry = match speaker.retry.take() {
            Some(retry) => {
                self.speech.history.sent_again_over(speaker.connections, retry.request);
                retry
            }
            None => {
                speaker.requests += 1;
                let forms = if self.speech.steps { 2 } else { 3 };
                let form = [Form::Plain, Form::Multi, Form::Eval][self.random.index(forms)].clone();
                let most = if form == Form::Plain { 1 } else { 4 };
                let ops = draw_ops(self.random, self.window, most);
                let unit = Unit::new(self.speech.base(), ops);
                let request = self.speech.sent(&unit, number, speaker.connections);
                Retry { number: speaker.requests, base: unit.base, ops: unit.ops, form, request }
            }
        };
        let mut unit = Unit::new(retry.base, retry.ops.clone());
        unit.request = Some(retry.request);
        write_command(&[b"CLIENT", b"REQUEST", retry.number.to_string().as_bytes()], out);
        speaker.units.push_back(Unit::alone(Kind::Word, Expected::Status("OK")));
        unit.write(&retry.form, out);
        speaker.units.push_back(unit);
        speaker.retry = Some(retry);
    }

    /// Some transactions at once.
    fn pipeline(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        for _ in 0..1 + self.random.tail(6) {
            let form = match self.random.below(if self.speech.steps { 7 } else { 14 }) {
                0..4 => Form::Plain,
                4..7 => Form::Multi,
                7 => Form::Discard,
                8 | 9 => speaker.script.clone().map_or(Form::Eval, Form::EvalSha),
                10 => Form::Call,
                11 => Form::Limited,
                12 => {
                    write_command(&[b"EVAL", DRAWS.as_bytes(), b"1", &list_key(self.random.below(8))], out);
                    speaker.units.push_back(Unit::alone(Kind::Word, Expected::Value));
                    continue;
                }
                _ => {
                    let text = self.speech.base().to_string().into_bytes();
                    write_command(&[b"ECHO", &text], out);
                    speaker.units.push_back(Unit::alone(Kind::Word, Expected::Echo(text)));
                    continue;
                }
            };
            let form = if form == Form::Call && !speaker.has_function { Form::Eval } else { form };
            let most = if form == Form::Plain { 1 } else { 4 };
            let mut unit = Unit::new(self.speech.base(), draw_ops(self.random, self.window, most));
            if form == Form::Limited {
                // Before all else, so that nothing of the script has an effect.
                unit.ops[0].appends = true;
            }
            self.speech.send(&mut unit, number, speaker.connections);
            if matches!(form, Form::Discard | Form::Limited) {
                self.speech.never(&unit);
                unit.request = None;
                unit.kind = if form == Form::Discard { Kind::Word } else { Kind::Refused };
            }
            unit.write(&form, out);
            speaker.units.push_back(unit);
        }
    }

    /// A transaction of several steps.
    fn steps(
        &mut self,
        number: usize,
        speaker: &mut Speaker,
        ops: Vec<ListOp>,
        kind: Kind,
        out: &mut Vec<u8>,
    ) {
        let mut unit = Unit::new(self.speech.base(), ops);
        unit.kind = kind;
        self.speech.send(&mut unit, number, speaker.connections);
        unit.begin(out);
        speaker.units.push_back(unit);
    }

    fn load(&mut self, speaker: &mut Speaker, out: &mut Vec<u8>) {
        let kind = if self.random.chance(500_000) {
            write_command(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()], out);
            Kind::Script
        } else {
            write_command(&[b"FUNCTION", b"LOAD", b"REPLACE", library().as_bytes()], out);
            Kind::Function
        };
        speaker.units.push_back(Unit::alone(kind, Expected::Value));
    }

    /// Writes a key that lives for some time, or looks for one.
    fn mortal(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        let known = speaker.mortals.len();
        if known > 0 && self.random.chance(700_000) {
            let which = speaker.mortals[known.saturating_sub(1 + self.random.index(known.min(3)))];
            // How much time is left depends on the time of its batch, which only true clocks tell closely enough.
            let asks_time = self.clocks_are_true && self.random.chance(300_000);
            let command: &[u8] = if asks_time { b"PTTL" } else { b"GET" };
            write_command(&[command, self.speech.mortal_key(which).as_bytes()], out);
            let kind = Kind::Look(which, self.speech.now);
            return speaker.units.push_back(Unit::alone(kind, Expected::Value));
        }
        let lives = Micros::from_millis(1 << self.random.between(0, 7));
        let (which, key) = self.speech.new_mortal(number, lives);
        let ms = (lives.0 / 1_000).to_string();
        if self.random.chance(500_000) {
            write_command(&[b"SET", key.as_bytes(), b"v", b"PX", ms.as_bytes()], out);
        } else {
            write_command(&[b"EVAL", MORTAL.as_bytes(), b"1", key.as_bytes(), ms.as_bytes()], out);
        }
        speaker.units.push_back(Unit::alone(Kind::Write(which), Expected::Value));
    }

    /// Writes two keys that end together, and looks for both in one transaction.
    fn pair(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        let keys = format!("p:{number}.{}.", self.speech.base());
        let pair = Pair::new(keys, 1 << self.random.between(0, 4), self.random.chance(700_000));
        speaker.units.push_back(Unit::pair(pair, out));
    }

    /// Writes a key for iterations, or removes it.
    fn change(&mut self, number: usize, speaker: &mut Speaker, out: &mut Vec<u8>) {
        speaker.changes += 1;
        let key = format!("s:{number}.{}", self.random.below(6));
        let is_there = self.random.chance(650_000);
        if is_there {
            write_command(&[b"SET", key.as_bytes(), b"v"], out);
        } else {
            write_command(&[b"DEL", key.as_bytes()], out);
        }
        let at = self.speech.change(&key, is_there);
        speaker.units.push_back(Unit::alone(Kind::Change(key, at), Expected::Value));
    }
}

/// Writes a key in one command and limits its time in another.
const MORTAL: &str =
    "redis.call('SET', KEYS[1], 'v') redis.call('PEXPIRE', KEYS[1], ARGV[1]) return redis.status_reply('OK')";

/// Sends a step of an iteration.
fn scan(cursor: &[u8], speaker: &mut Speaker, out: &mut Vec<u8>, random: &mut Random) {
    let count = random.between(1, 12).to_string();
    write_command(&[b"SCAN", cursor, b"MATCH", b"s:*", b"COUNT", count.as_bytes()], out);
    speaker.units.push_back(Unit::alone(Kind::Scan, Expected::Value));
}
