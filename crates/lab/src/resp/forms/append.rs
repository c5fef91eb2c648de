//! Append without native procedures: a list is a string, which APPEND appends to and GET reads.
//!
//! The workload checks answers that hold the operations, which a block's replies do not. So the block echoes them; a script
//! puts the answer together itself.

use anyhow::{Context, bail};
use ordain_checker::dependencies::history::{Txn, values_of};
use ordain_model::{Args, Datum, ProcedureId, Writer};
use ordain_resp::client::Commands;
use ordain_workload::append::{LOOSE, Lists, RUN};
use ordain_workload::{Param, Workload};

use super::script::Script;
use super::{Form, audit, block, split_packed};
use crate::resp::link::Link;

/// A transaction in Lua, with the encoding of its results. Arguments: a digit for each key, 1 if it is
/// appended to, the transaction's base, and then for each operation the value that it would append.
const BODY: &str = "local out = {ARGV[2], string.char(#KEYS)}
for i, key in ipairs(KEYS) do
  local number = string.sub(key, 2)
  if string.byte(ARGV[1], i) == 49 then
    redis.call('APPEND', key, ARGV[2 + i])
    out[#out + 1] = string.char(1) .. number
  else
    local list = redis.call('GET', key) or ''
    local n = #list
    local length = string.char(n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256, 0)
    out[#out + 1] = string.char(0) .. number .. length .. list
  end
end
return table.concat(out)";

/// The bytes of a base, and of a list's number, which ends its key.
const WORD: usize = 8;

/// The form of append.
#[derive(Debug)]
pub struct Append {
    script: Option<Script>,
}

impl Append {
    /// As a script, or else as a block.
    pub fn prepare(workload: &dyn Workload, as_script: bool, link: &mut Link) -> anyhow::Result<Append> {
        if audit::param(workload, "fails") != Some(Param::Real(0.0)) {
            bail!(
                "neither a block nor a script can undo what it did: leave --fails at 0, or choose --form native"
            );
        }
        Ok(Append { script: as_script.then(|| Script::load(link, BODY)).transpose()? })
    }
}

/// Unpacks the packed argument: whether operation i appends, and the base.
fn unpack(packed: &[u8], ops: usize) -> anyhow::Result<(impl Fn(usize) -> bool, u64)> {
    let base = packed.last_chunk::<WORD>().filter(|_| packed.len() == ops.div_ceil(8) + 1 + WORD);
    let base = u64::from_le_bytes(*base.context("append has no such arguments")?);
    Ok((move |op: usize| packed.get(op / 8).is_some_and(|bits| bits >> (op % 8) & 1 == 1), base))
}

impl Form for Append {
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        if procedure != RUN {
            bail!("append has no procedure {procedure}");
        }
        let (keys, packed) = split_packed(args)?;
        let (appends, base) = unpack(packed, keys.len())?;
        let value = |op: usize| base.wrapping_add(op as u64).to_le_bytes();
        match &self.script {
            None => block::write(out, |out| {
                out.command(&[b"ECHO", args.encoded()]);
                for (op, key) in keys.enumerate() {
                    if appends(op) {
                        out.command(&[b"APPEND", key, &value(op)]);
                    } else {
                        out.command(&[b"GET", key]);
                    }
                }
            }),
            Some(script) => {
                let ops = keys.len();
                let digits: Vec<u8> = (0..ops).map(|op| b'0' + u8::from(appends(op))).collect();
                let out = script.call(out, ops, 2 + ops);
                keys.for_each(|key| _ = out.word(key));
                out.word(digits).word(base.to_le_bytes());
                (0..ops).for_each(|op| _ = out.word(value(op)));
            }
        }
        Ok(())
    }

    fn is_block(&self) -> bool {
        self.script.is_none()
    }

    fn read_block(&self, replies: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<()> {
        let txn = transaction(replies).context("a block of append was not answered with its echo")?;
        Writer(reply).bulk(&txn);
        Ok(())
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut found = Lists::default();
        let keys = audit::all_keys(link)?;
        link.ask_all(
            &keys,
            |key, out| _ = out.begin(2).word("GET").word(key),
            |key, reply| {
                let number = key.strip_prefix(b"a").and_then(|n| n.try_into().ok()).map(u64::from_le_bytes);
                match (number, Datum::first(reply).as_bytes().and_then(values_of)) {
                    (Some(list), Some(values)) if list < LOOSE => _ = found.lists.insert(list, values),
                    (Some(_), Some(values)) => found.loose += values.len() as u64,
                    _ => found.damaged += 1,
                }
                Ok(())
            },
        )?;
        Ok(vec![audit::answer(&found)])
    }
}

/// The transaction that a block's replies describe: the echo of its arguments, and what each operation was answered.
fn transaction(items: &[u8]) -> Option<Vec<u8>> {
    let (Datum::Bulk(echo), mut rest) = Datum::split(items)? else { return None };
    let args = Args::parse(echo)?;
    let (keys, packed) = split_packed(args).ok()?;
    let (appends, base) = unpack(packed, keys.len()).ok()?;
    let mut txn = Vec::new();
    Txn::encode_head(base, keys.len(), &mut txn);
    for (op, key) in keys.enumerate() {
        let list = u64::from_le_bytes(*key.last_chunk()?);
        let (answer, tail) = Datum::split(rest)?;
        rest = tail;
        if appends(op) {
            Txn::encode_append(list, &mut txn);
        } else {
            Txn::encode_read(list, answer.as_bytes().unwrap_or_default(), &mut txn);
        }
    }
    Some(txn)
}

#[cfg(test)]
mod tests {
    use ordain_checker::dependencies::history::Op;
    use ordain_workload::append::key;

    use super::super::tests::{transcript, with_args};
    use super::*;

    const BASE: u64 = 0x4100;

    fn args() -> Vec<u8> {
        with_args(&[&key(1), &key(2), &[&[0b01, 0][..], &BASE.to_le_bytes()].concat()])
    }

    #[test]
    fn a_transaction_in_each_form() {
        let [one, two] = [key(1), key(2)].map(|key| key.escape_ascii().to_string());
        let bytes = |n: u64| n.to_le_bytes().escape_ascii().to_string();
        let (args, base, next) = (args(), bytes(BASE), bytes(BASE + 1));
        assert_eq!(
            transcript(&Append { script: None }, RUN, &args),
            format!("MULTI\nECHO {}\nAPPEND {one} {base}\nGET {two}\nEXEC\n", args.escape_ascii())
        );
        assert_eq!(
            transcript(&Append { script: Some(Script::kept("abc")) }, RUN, &args),
            format!("EVALSHA abc 2 {one} {two} 10 {base} {base} {next}\n")
        );
    }

    #[test]
    fn a_block_tells_what_it_did_and_saw() {
        let mut items = Vec::new();
        let mut w = Writer(&mut items);
        w.bulk(&args());
        w.int(8);
        w.bulk(&7u64.to_le_bytes());
        let ops = vec![Op::Append { key: 1, value: BASE }, Op::Read { key: 2, values: vec![7] }];
        assert_eq!(Txn::decode(&transaction(&items).unwrap()), Some(Txn { base: BASE, ops }));
        assert_eq!(transaction(&items[..items.len() - 1]), None);
        assert_eq!(transaction(&[]), None);
    }
}
