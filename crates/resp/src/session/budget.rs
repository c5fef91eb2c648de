//! What a command takes, when it has to wait for that, and when it is refused because memory is short.
//!
//! A command is weighed before it is run: how many values may be in its reply, and, only while there is a limit of
//! memory, how much it may make of memory at most. If there is no room for that beside what is under way it is kept,
//! whole, and nothing more of its connection is read until there is: when others have ended.
//!
//! While memory is short, commands with Redis's flag `denyoom` are refused if they write in a partition that is short,
//! in a block as they are queued and at EXEC, as Redis has it. Scripts are run, but as procedures of other numbers
//! ([`frugal`](ordain_commands::script::frugal)), which refuse such commands as they are called: so what a script is
//! refused stands in the log, and every replica refuses the same.

use ordain_commands::{Action, Command, Flags, SessionCommand, ids, lookup};
use ordain_model::plan::Planner;
use ordain_model::{Args, ArgsBuilder, Db, ProcedureId};

use super::dispatch::planned;
use super::replies::Cost;
use super::{Closing, Mode, Session, Words};
use crate::memory::OUT_OF_MEMORY;
use crate::shared::{Context, Shared};

/// The most that a value may hold, and so what a command may make that says nothing of how much it is.
const VALUE: u64 = 16 << 20;
/// Output of so few bytes is not counted: counting would cost more than it is.
const UNCOUNTED: u64 = (16 << 10) - 1;

/// Tells whether a command needs memory, by Redis's table.
fn needs_memory(command: &Command, words: &Words<'_>, cx: &Context<'_>) -> bool {
    let sub = |names: &[&str]| {
        words.get(1).is_some_and(|sub| names.iter().any(|name| sub.eq_ignore_ascii_case(name.as_bytes())))
    };
    match command.action {
        Action::Session(SessionCommand::Function) => sub(&["load", "restore"]),
        // Unlike Redis: what is loaded is kept, without a bound.
        Action::Session(SessionCommand::Script) => sub(&["load"]),
        // A native procedure; those of libraries are scripts.
        Action::Function { read_only: false } => {
            words.get(1).is_some_and(|name| cx.gateway.registry().find_native(name).is_some())
        }
        _ => command.flags.has(Flags::DENYOOM),
    }
}

/// The most values in the reply to a command.
fn values(command: &Command, words: &Words<'_>) -> usize {
    let id = match command.action {
        Action::Procedure { id, .. } => id,
        Action::Function { .. } => return 1,
        Action::Session(_) => return 0,
    };
    match id {
        ids::MGET => words.len() - 1,
        ids::HMGET => words.len().saturating_sub(2),
        ids::SET => usize::from(words.len() > 3 && command.name == "set" || command.name == "getset"),
        ids::GET | ids::GETRANGE | ids::GETDEL | ids::GETEX | ids::HGET | ids::HGETALL | ids::HKEYS => 1,
        ids::HVALS | ids::HSCAN | ids::HRANDFIELD | ids::KEYS | ids::SCAN => 1,
        ids::EVAL | ids::EVALSHA | ids::EVAL_RO | ids::EVALSHA_RO => 1,
        _ => 0,
    }
}

/// The most bytes of memory that a command may take. Its arguments are held twice while it is under way.
fn need(command: &Command, words: &Words<'_>) -> u64 {
    let number = |at: usize| -> u64 {
        words.get(at).and_then(|word| std::str::from_utf8(word).ok()?.parse().ok()).unwrap_or(0)
    };
    let made = match command.action {
        Action::Procedure { id: ids::SETRANGE, .. } => number(2).min(VALUE),
        Action::Procedure { id: ids::COPY, .. } => VALUE,
        Action::Procedure { id: ids::EVAL | ids::EVALSHA, .. } | Action::Function { read_only: false } => {
            number(2).clamp(1, words.len() as u64) * VALUE
        }
        _ if command.flags.has(Flags::DENYOOM) => 0,
        _ => return 0,
    };
    words.iter().map(|word| 2 * word.len() as u64).sum::<u64>() + made
}

impl Session {
    /// Notes what the command at hand takes.
    #[inline]
    pub(super) fn weigh(&mut self, command: &Command, words: &Words<'_>, cx: &mut Context<'_>) {
        let values = values(command, words);
        let need = if cx.shared.memory.is_limited() { need(command, words) } else { 0 };
        let request = cx.shared.scratch.cost.request;
        match &mut self.mode {
            Mode::Plain => cx.shared.scratch.cost = Cost { request, values, need },
            Mode::Multi(multi) => {
                cx.shared.scratch.cost = match command.action {
                    Action::Session(SessionCommand::Exec) => multi.cost(),
                    _ => {
                        multi.count(Cost { request, values, need }, needs_memory(command, words, cx));
                        Cost { request, ..Cost::default() }
                    }
                }
            }
            Mode::Interactive(open) => {
                open.needs_memory |= needs_memory(command, words, cx);
                let is_commit = matches!(command.action, Action::Session(SessionCommand::TxnCommit));
                let need = if need > 0 || is_commit && cx.shared.memory.is_limited() {
                    open.bytes() as u64
                } else {
                    0
                };
                cx.shared.scratch.cost = Cost { request, values: usize::from(values > 0), need };
            }
        }
    }

    /// Tells whether there is room for a command.
    #[inline]
    pub(super) fn can_afford(&self, cost: &Cost, shared: &Shared) -> bool {
        cost.values == 0 && cost.need == 0 || self.has_room_for(cost, shared)
    }

    fn has_room_for(&self, cost: &Cost, shared: &Shared) -> bool {
        let memory = &shared.memory;
        if cost.values > 0 {
            let expected = self.replies.expected_of(cost.values);
            let is_small = expected < 1 << 10;
            if !(is_small || self.replies.can_expect(expected) && memory.can_expect(expected))
                || self.replies.unsent() > 0 && memory.is_filling()
            {
                return false;
            }
        }
        cost.need == 0 || memory.can_need(cost.need)
    }

    /// Tells whether a command is kept until there is room for it: then [`Session::receive`] is to be called, with or without
    /// input, once [`Session::wants_input`] says so.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Runs the command that was kept, if there is room for it now.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        let Some((_, cost)) = self.waiting.as_deref() else { return };
        if self.closing == Closing::Now || !self.can_afford(cost, cx.shared) {
            return;
        }
        let Some((words, cost)) = self.waiting.take().map(|waiting| *waiting) else { return };
        let words: Vec<&[u8]> = words.iter().map(|word| &**word).collect();
        cx.shared.scratch.cost = cost;
        let Some(command) = words.first().and_then(|name| lookup(name)) else { return };
        // What its user may do can have changed meanwhile.
        if cx.shared.access.version() != self.users_version {
            self.note_users(cx.shared);
            if self.closing == Closing::Now {
                return;
            }
        }
        if !self.user.is_unrestricted()
            && let Err(denied) = self.check_rights(command, &words, cx.gateway.registry())
        {
            return self.deny(command, &words, denied, cx);
        }
        if !(cx.shared.memory.is_short() && self.refuse_without_memory(command, &words, cx)) {
            self.run(command, &words, cx);
        }
        self.note_taken(&words, cx);
    }

    /// Answers a command that needs memory where that is short; says whether it did. Only to be called while it is.
    pub(super) fn refuse_without_memory(
        &mut self,
        command: &Command,
        words: &Words<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let session = match command.action {
            Action::Session(which) => Some(which),
            _ => None,
        };
        match &self.mode {
            Mode::Multi(multi) => match session {
                Some(SessionCommand::Exec) => {
                    let calls =
                        || multi.planned().map(|(procedure, db, args)| (procedure, db, args.to_vec()));
                    let is_short = multi.needs_memory() && {
                        let calls: Vec<(ProcedureId, Db, Vec<u8>)> = calls().collect();
                        calls
                            .iter()
                            .any(|(procedure, db, args)| writes_where_short(*procedure, *db, args, cx))
                    };
                    if is_short {
                        self.take_request();
                        self.mode = Mode::Plain;
                        self.watched.clear();
                        self.answer(cx, |w| {
                            w.error(format!("EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}"));
                        });
                    }
                    return is_short;
                }
                Some(SessionCommand::Discard | SessionCommand::Quit | SessionCommand::Reset) => return false,
                // What is queued takes memory, too.
                _ if cx.shared.memory.is_over_now() => {}
                _ if needs_memory(command, words, cx) && self.is_short_for(command, words, cx) => {}
                _ => return false,
            },
            Mode::Interactive(open) if session == Some(SessionCommand::TxnCommit) => {
                if !(open.needs_memory && open.writes_where_short(cx)) {
                    return false;
                }
                self.take_request();
                self.release(cx.gateway);
                self.mode = Mode::Plain;
            }
            Mode::Plain | Mode::Interactive(_) => {
                if !(needs_memory(command, words, cx) && self.is_short_for(command, words, cx)) {
                    return false;
                }
                self.take_request();
            }
        }
        self.reject(OUT_OF_MEMORY.as_bytes(), cx);
        true
    }

    /// Tells whether a command writes in a partition that is short.
    fn is_short_for(&self, command: &Command, words: &Words<'_>, cx: &mut Context<'_>) -> bool {
        let registry = cx.gateway.registry().clone();
        // What is refused anyway is refused for that.
        let Ok(Some(call)) = planned(&registry, command, words) else { return false };
        let mut args = Vec::new();
        (call.encode)(call.args, &mut ArgsBuilder::new(&mut args));
        let db = match &self.mode {
            Mode::Multi(multi) => multi.db(),
            Mode::Plain | Mode::Interactive(_) => self.db,
        };
        writes_where_short(call.procedure, db, &args, cx)
    }

    /// Brings what all connections hold up to date with what this one does.
    pub fn settle(&mut self, shared: &Shared) {
        let kept = match &self.mode {
            Mode::Plain => 0,
            Mode::Multi(multi) => multi.memory(),
            Mode::Interactive(open) => open.bytes(),
        };
        let waiting = self.waiting.as_deref().map_or(0, |(_, cost)| cost.request);
        let held = (self.replies.unsent() + kept + waiting + self.input) as u64 & !UNCOUNTED;
        let needed = match self.closing {
            Closing::Now => self.account.needed(),
            Closing::No | Closing::AfterReplies => self.replies.needed(),
        };
        self.account.settle(&shared.memory, held, self.replies.expected(), needed);
    }

    /// The edge keeps so many bytes of input for it.
    pub fn keep_input(&mut self, bytes: usize, shared: &Shared) {
        self.input = bytes;
        self.settle(shared);
    }

    /// The connection is closed: it holds nothing any more.
    pub fn close(&mut self, shared: &Shared) {
        self.account.close(&shared.memory);
    }

    /// Gives back memory that is not in use.
    pub fn trim(&mut self) {
        self.replies.trim();
    }

    /// Bytes that it holds of what all connections may hold together.
    pub fn held(&self) -> u64 {
        self.account.held()
    }
}

/// Tells whether a call writes in a partition that is short; one that is refused for what it is does not.
fn writes_where_short(procedure: ProcedureId, db: Db, args: &[u8], cx: &mut Context<'_>) -> bool {
    let (registry, layout) = (cx.gateway.registry(), cx.gateway.layout());
    if layout.partitions() == 1 || registry.get(procedure).is_some_and(|procedure| procedure.is_dependent()) {
        return true;
    }
    let plans = &mut cx.shared.scratch.plans;
    plans.fragments.clear();
    plans.inputs.clear();
    plans.calls.clear();
    let Some(view) = Args::parse(args) else { return false };
    if Planner::plan(registry, procedure, db, view, plans).is_err() {
        return false;
    }
    let writes = plans.fragments.iter().filter(|fragment| fragment.writes());
    let memory = &cx.shared.memory;
    let mut partitions = writes.map(|fragment| layout.partition_of(fragment.hash.slot()).0);
    partitions.any(|partition| memory.is_short_in(partition))
}
