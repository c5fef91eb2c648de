//! The microbenchmarks without native procedures: a record is a number.

use anyhow::bail;
use ordain_model::{Args, Datum, ProcedureId, Writer};
use ordain_resp::client::Commands;
use ordain_workload::micro::{LOAD, RUN, key};
use ordain_workload::{Param, Workload};

use super::script::Script;
use super::{Form, audit, block, split_packed};
use crate::resp::link::Link;

/// A transaction in Lua. Arguments: what to do with all of the records (0 reads, 1 adds, 2 adds if none is
/// below the floor, 3 adds to the latter half by what is found in the first), and the floor.
const BODY: &str = "if ARGV[1] == '0' then
  local sum = 0
  for _, key in ipairs(KEYS) do sum = sum + redis.call('GET', key) end
  return sum
end
if ARGV[1] == '2' then
  local floor = tonumber(ARGV[2])
  for _, key in ipairs(KEYS) do
    if tonumber(redis.call('GET', key)) < floor then
      return redis.error_reply('CONSTRAINT a counter is below the floor')
    end
  end
end
if ARGV[1] == '3' then
  local half = #KEYS / 2
  for i = 1, half do
    local odd = tonumber(redis.call('GET', KEYS[i])) % 2
    redis.call('INCRBY', KEYS[i], 2 - odd)
    redis.call('INCRBY', KEYS[half + i], odd)
  end
  return 0
end
for _, key in ipairs(KEYS) do redis.call('INCR', key) end
return 0";

/// The form of a microbenchmark.
#[derive(Debug)]
pub struct Micro {
    script: Option<Script>,
    records: u64,
}

impl Micro {
    /// As a script, or else as a block.
    pub fn prepare(workload: &dyn Workload, as_script: bool, link: &mut Link) -> anyhow::Result<Micro> {
        let checks = matches!(audit::param(workload, "constraint_fails"), Some(Param::Real(_)));
        if checks && !as_script {
            bail!("a block cannot check a constraint: leave the check out, or choose --form script");
        }
        if !as_script && audit::param(workload, "dependent").is_some() {
            bail!("a block cannot write what it has read: leave --dependent out, or choose --form script");
        }
        let records = match audit::param(workload, "records_per_partition") {
            Some(_) => {
                audit::count(workload, "records_per_partition")? * audit::count(workload, "partitions")?
            }
            None => audit::count(workload, "records")?,
        };
        Ok(Micro { script: as_script.then(|| Script::load(link, BODY)).transpose()?, records })
    }
}

impl Form for Micro {
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        let (keys, packed) = split_packed(args)?;
        if procedure == LOAD {
            out.begin(1 + 2 * keys.len()).word("MSET");
            keys.for_each(|key| _ = out.word(key).word("0"));
            return Ok(());
        }
        let (RUN, Some((what, floor))) = (procedure, packed.split_first()) else {
            bail!("the microbenchmarks have no procedure {procedure} of {} bytes", packed.len());
        };
        match (&self.script, what) {
            (Some(script), _) => {
                let floor = floor.first_chunk().map_or(0, |floor| u64::from_le_bytes(*floor));
                let out = script.call(out, keys.len(), 2);
                keys.for_each(|key| _ = out.word(key));
                out.number(i64::from(*what)).word(floor.to_string());
            }
            (None, 0) => block::write(out, |out| {
                out.begin(1 + keys.len()).word("MGET");
                keys.for_each(|key| _ = out.word(key));
            }),
            (None, 1) => block::write(out, |out| keys.for_each(|key| _ = out.command(&[b"INCR", key]))),
            (None, _) => bail!("a block cannot check a constraint or write what it has read"),
        }
        Ok(())
    }

    fn loads(&self, procedure: ProcedureId) -> bool {
        procedure == LOAD
    }

    fn is_block(&self) -> bool {
        self.script.is_none()
    }

    fn read_block(&self, replies: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<()> {
        // Of a read the one reply is an array of digits; of additions the replies are integers, and not reported.
        let mut sum = 0u64;
        if let Some((Datum::Array(_), mut rest)) = Datum::split(replies) {
            while let Some((datum, tail)) = Datum::split(rest) {
                sum = sum.wrapping_add(audit::integer(datum).unwrap_or(0));
                rest = tail;
            }
        }
        Writer(reply).int(sum as i64);
        Ok(())
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        audit::counters(link, self.records, key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{transcript, with_args};
    use super::*;

    #[test]
    fn a_transaction_in_each_form() {
        let (block, script) =
            (Micro { script: None, records: 9 }, Micro { script: Some(Script::kept("abc")), records: 9 });
        let keys = [&key(1)[..], &key(2)];
        let [one, two] = keys.map(|key| key.escape_ascii().to_string());
        let args = |what: u8, floor: u64| {
            with_args(&[keys[0], keys[1], &[&[what][..], &floor.to_le_bytes()].concat()])
        };
        assert_eq!(transcript(&block, RUN, &args(0, 0)), format!("MULTI\nMGET {one} {two}\nEXEC\n"));
        assert_eq!(transcript(&block, RUN, &args(1, 0)), format!("MULTI\nINCR {one}\nINCR {two}\nEXEC\n"));
        assert_eq!(
            transcript(&script, RUN, &args(2, u64::MAX)),
            format!("EVALSHA abc 2 {one} {two} 2 18446744073709551615\n")
        );
        assert_eq!(
            transcript(&script, LOAD, &with_args(&[keys[0], keys[1], &[]])),
            format!("MSET {one} 0 {two} 0\n")
        );
        let checked = args(2, 0);
        assert!(block.write(RUN, Args::parse(&checked).unwrap(), &mut Commands::default()).is_err());
    }

    #[test]
    fn a_read_in_a_block_answers_the_sum() {
        let mut replies = Vec::new();
        let mut w = Writer(&mut replies);
        w.ok();
        w.status("QUEUED");
        w.array(1);
        w.array(2);
        w.bulk(b"40");
        w.bulk(b"2");
        let mut reply = Vec::new();
        let status = Micro { script: None, records: 9 }.read(RUN, &replies, &mut reply).unwrap();
        assert_eq!((status, Datum::first(&reply)), (ordain_model::OutcomeStatus::Committed, Datum::Int(42)));
    }
}
