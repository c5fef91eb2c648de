//! Forms: the commands by which a transaction of a workload travels.
//!
//! A workload makes up a procedure and its arguments. Ordain takes them as they are (`native`: FCALL). Any other
//! server for Redis's protocol gets equivalent commands: as a block (`multi`: MULTI … EXEC), which suits what
//! needs no decision in the middle, or as a script (`script`: EVALSHA), which may decide. Records are laid out as
//! such a server would have them, so that the comparison is with what its users would do: a record with a counter is
//! a hash, an account a number, a list a string that is appended to.
//!
//! [`prepare`] is the one place that knows which workloads have which forms.

mod append;
mod audit;
mod bank;
mod block;
mod micro;
mod native;
mod script;
mod tpcc;
mod ycsb;

use std::fmt;

use anyhow::bail;
use ordain_model::{Abort, Args, Datum, OutcomeStatus, ProcedureId, Writer};
use ordain_resp::client::Commands;
use ordain_workload::Workload;
use ordain_workload::tpcc::new_order::UNUSED_ITEM;
use smallvec::SmallVec;

use super::link::{Link, Protocol};
use super::probe::ServerInfo;

/// The forms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum FormName {
    /// FCALL of the very procedure: Ordain only
    Native,
    /// MULTI … EXEC of ordinary commands
    Multi,
    /// EVALSHA of a Lua script
    Script,
}

impl FormName {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FormName::Native => "native",
            FormName::Multi => "multi",
            FormName::Script => "script",
        }
    }

    /// The protocol of the replies.
    pub const fn protocol(self) -> Protocol {
        match self {
            FormName::Native => Protocol::Resp3,
            FormName::Multi | FormName::Script => Protocol::Resp2,
        }
    }
}

impl fmt::Display for FormName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Turns transactions into commands and replies into outcomes. Shared by all connections.
pub trait Form: fmt::Debug + Send + Sync {
    /// Writes the commands of a transaction of loading or of the run.
    ///
    /// # Errors
    /// A procedure that this form does not know: a mistake in the program.
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()>;

    /// True if a procedure loads: then none of its commands may fail.
    fn loads(&self, procedure: ProcedureId) -> bool {
        let _ = procedure;
        false
    }

    /// True if transactions are blocks; if not, each is one command.
    fn is_block(&self) -> bool {
        false
    }

    /// Appends the reply of the native procedure, as far as the workload looks at it, from the replies of a block's
    /// commands. There are none if the block did not take effect.
    ///
    /// # Errors
    /// The server did something that no run can go on after.
    fn read_block(&self, replies: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<()> {
        let _ = (replies, reply);
        Ok(())
    }

    /// Makes one outcome of the replies to a transaction's commands, each an encoded [`Datum`], one after the other, and
    /// appends the reply of the native procedure.
    ///
    /// # Errors
    /// The server did something that no run can go on after.
    fn read(
        &self,
        procedure: ProcedureId,
        replies: &[u8],
        reply: &mut Vec<u8>,
    ) -> anyhow::Result<OutcomeStatus> {
        if self.loads(procedure) {
            return plain(replies, reply);
        }
        if !self.is_block() {
            return read_one(replies, reply);
        }
        let (status, items) = block::read(replies)?;
        if status == OutcomeStatus::Committed {
            self.read_block(items, reply)?;
        }
        Ok(status)
    }

    /// Answers the workload's audits, in order.
    fn audit(&self, audits: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>>;
}

/// A workload's form on a server, with all that it needs there.
///
/// # Errors
/// The workload does not have that form, or the server does not take it.
pub fn prepare(
    form: FormName,
    workload: &dyn Workload,
    server: &ServerInfo,
    link: &mut Link,
) -> anyhow::Result<Box<dyn Form>> {
    let name = workload.name();
    Ok(match (name, form) {
        (_, FormName::Native) if server.is_ordain() => Box::new(native::Native::new()),
        (_, FormName::Native) => {
            let others = others(name).unwrap_or("there is no other for this workload");
            bail!("{server} has no native procedures, only Ordain has: {others}")
        }
        ("ycsb", form) => Box::new(ycsb::Ycsb::prepare(workload, form == FormName::Script, link)?),
        ("append", form) => Box::new(append::Append::prepare(workload, form == FormName::Script, link)?),
        ("micro" | "micro-regions", form) => {
            Box::new(micro::Micro::prepare(workload, form == FormName::Script, link)?)
        }
        ("bank", FormName::Script) => Box::new(bank::Bank::prepare(workload, link)?),
        ("tpcc", FormName::Script) if server.is_ordain() => bail!(
            "tpcc as scripts touches rows whose keys follow from what it reads, and those cannot be declared to {server}: \
             choose --form native"
        ),
        ("tpcc", FormName::Script) => Box::new(tpcc::Tpcc::prepare(link)?),
        (_, form) => match others(name) {
            Some(others) => bail!("{name} has no form {form}, it has native on Ordain: {others}"),
            None => bail!("{name} has no form {form}, only native, on Ordain"),
        },
    })
}

/// The forms that a workload has besides native.
fn others(workload: &str) -> Option<&'static str> {
    match workload {
        "append" | "ycsb" | "micro" | "micro-regions" => {
            Some("on any server choose --form multi or --form script")
        }
        "tpcc" => Some("on Redis choose --form script"),
        "bank" => Some("on any server choose --form script"),
        _ => None,
    }
}

/// The outcome of a transaction that was answered with an error.
///
/// # Errors
/// Something is wrong with the server or with what it was asked: the run cannot go on.
pub fn outcome_of(text: &[u8]) -> anyhow::Result<OutcomeStatus> {
    let is = |prefix: &str| text.starts_with(prefix.as_bytes());
    Ok(match text.split(|byte| *byte == b' ').next().unwrap_or_default() {
        b"BUSY" => OutcomeStatus::Busy,
        b"MISCONF" | b"OOM" => OutcomeStatus::Refused,
        b"TXNABORT" => {
            let known = Abort::ALL.into_iter().find(|abort| abort.is_retryable() && is(abort.text()));
            OutcomeStatus::Aborted(known.unwrap_or(Abort::Restart))
        }
        b"ERR" if is("ERR transaction aborted by its own logic") || text == UNUSED_ITEM.as_bytes() => {
            OutcomeStatus::Aborted(Abort::Logic)
        }
        // Codes that servers give to what should never be asked, or cannot be answered.
        b"ERR" | b"WRONGTYPE" | b"NOSCRIPT" | b"NOAUTH" | b"WRONGPASS" | b"NOPERM" | b"LOADING"
        | b"READONLY" | b"MASTERDOWN" | b"CLUSTERDOWN" | b"MOVED" | b"ASK" | b"CROSSSLOT" | b"TRYAGAIN"
        | b"EXECABORT" | b"NOREPLICAS" | b"NOPROTO" | b"UNKILLABLE" => {
            bail!("the server answered a transaction with an error: {}", String::from_utf8_lossy(text))
        }
        // A code of the procedure's own.
        _ => OutcomeStatus::Aborted(Abort::Logic),
    })
}

/// The keys of a transaction and its packed argument.
fn split_packed(args: Args<'_>) -> anyhow::Result<(impl ExactSizeIterator<Item = &[u8]>, &[u8])> {
    let Some(keys) = args.len().checked_sub(1) else { bail!("a workload wrote no arguments") };
    let mut items = args.iter();
    let keys: SmallVec<[&[u8]; 32]> = items.by_ref().take(keys).map(|arg| arg.bytes).collect();
    Ok((keys.into_iter(), items.bytes()))
}

/// The outcome of commands that load: none may fail.
fn plain(replies: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<OutcomeStatus> {
    let mut rest = replies;
    while let Some((one, tail)) = Datum::split_whole(rest) {
        if let Datum::Error(_) = Datum::first(one) {
            return read_one(one, reply);
        }
        rest = tail;
    }
    Writer(reply).ok();
    Ok(OutcomeStatus::Committed)
}

/// The outcome of a single reply, which is appended.
fn read_one(replies: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<OutcomeStatus> {
    reply.extend_from_slice(replies);
    match Datum::first(replies) {
        Datum::Error(text) => outcome_of(text),
        _ => Ok(OutcomeStatus::Committed),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use ordain_model::args;
    use ordain_resp::client::Reply;

    use super::*;

    pub fn with_args(args: &[&[u8]]) -> Vec<u8> {
        args::encode(args)
    }

    /// The commands that a form writes, word by word.
    pub fn commands(form: &dyn Form, procedure: ProcedureId, args: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut out = Commands::default();
        form.write(procedure, Args::parse(args).unwrap(), &mut out).unwrap();
        let (mut rest, mut lines) = (&out.bytes[..], Vec::new());
        // A command is an array of bulks, just like a reply.
        while let Some((command, len)) = Reply::read(rest).unwrap() {
            rest = &rest[len..];
            let word =
                |word: &Reply| if let Reply::Bulk(word) = word { word.clone() } else { panic!("{word:?}") };
            lines.push(command.composite().unwrap().iter().map(word).collect::<Vec<_>>());
        }
        assert!(rest.is_empty(), "a command is cut");
        assert_eq!(lines.len(), out.count as usize, "a reply is waited for for every command");
        lines
    }

    /// The same as text, a command a line.
    pub fn transcript(form: &dyn Form, procedure: ProcedureId, args: &[u8]) -> String {
        let text = |line: Vec<Vec<u8>>| {
            let words: Vec<String> = line.iter().map(|word| word.escape_ascii().to_string()).collect();
            words.join(" ") + "\n"
        };
        commands(form, procedure, args).into_iter().map(text).collect()
    }

    #[test]
    fn errors_are_distinguished() {
        let logic = OutcomeStatus::Aborted(Abort::Logic);
        for (text, status) in [
            ("NOFUNDS not enough in the account", Some(logic)),
            (UNUSED_ITEM, Some(logic)),
            ("BUSY the pipeline is full: retry later", Some(OutcomeStatus::Busy)),
            ("MISCONF this node cannot", Some(OutcomeStatus::Refused)),
            ("ERR unknown command 'FCALL'", None),
            ("WRONGTYPE Operation against", None),
            ("ERR Function not found", None),
        ] {
            assert_eq!(outcome_of(text.as_bytes()).ok(), status, "{text}");
        }
        // The texts that the model gives to each abort.
        for abort in Abort::ALL {
            let of_regions = matches!(abort, Abort::RegionsTable);
            let ends_the_run = of_regions || matches!(abort, Abort::Panic | Abort::Budget | Abort::Operator);
            let status = (!ends_the_run).then_some(OutcomeStatus::Aborted(abort));
            let mut reply = Vec::new();
            Writer(&mut reply).abort(abort);
            let Datum::Error(text) = Datum::first(&reply) else { panic!() };
            assert_eq!(outcome_of(text).ok(), status, "{abort:?}");
        }
    }

    #[test]
    fn forms_have_names() {
        for form in FormName::value_variants() {
            assert_eq!(FormName::from_str(form.name(), false).unwrap(), *form);
        }
        assert!(FormName::from_str("lua", false).is_err());
    }
}
