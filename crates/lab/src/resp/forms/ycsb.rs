//! YCSB without native procedures: a record is a hash of a counter `n` and the payload `p`.
//!
//! A read fetches both fields. A read-modify-write adds one to the counter and reads the payload. As a block the
//! client is sent what was read; as a script it stays on the server, as it does natively.

use anyhow::bail;
use ordain_model::{Args, Datum, ProcedureId, Writer};
use ordain_resp::client::Commands;
use ordain_workload::Workload;
use ordain_workload::ycsb::{COUNTER_BYTES, LOAD, RUN, initial, key};

use super::script::Script;
use super::{Form, audit, block, split_packed};
use crate::resp::link::Link;

/// A transaction in Lua. A digit of the argument for each key: 1 if it is written.
const BODY: &str = "local sum = 0
for i, key in ipairs(KEYS) do
  if string.byte(ARGV[1], i) == 49 then
    redis.call('HINCRBY', key, 'n', 1)
    sum = sum + #redis.call('HGET', key, 'p')
  else
    local record = redis.call('HMGET', key, 'n', 'p')
    sum = sum + record[1] + #record[2]
  end
end
return sum";

/// The form of YCSB.
#[derive(Debug)]
pub struct Ycsb {
    script: Option<Script>,
    records: u64,
    record_bytes: usize,
}

impl Ycsb {
    /// As a script, or else as a block.
    pub fn prepare(workload: &dyn Workload, as_script: bool, link: &mut Link) -> anyhow::Result<Ycsb> {
        Ok(Ycsb {
            script: as_script.then(|| Script::load(link, BODY)).transpose()?,
            records: audit::count(workload, "records")?,
            record_bytes: audit::count(workload, "record_bytes")? as usize,
        })
    }

    fn payload(&self, key: &[u8]) -> Vec<u8> {
        // The number of a record ends its key.
        let record = key.last_chunk().map_or(0, |n| u64::from_le_bytes(*n));
        initial(record, self.record_bytes).split_off(COUNTER_BYTES.min(self.record_bytes))
    }
}

impl Form for Ycsb {
    fn write(&self, procedure: ProcedureId, args: Args<'_>, out: &mut Commands) -> anyhow::Result<()> {
        let (keys, packed) = split_packed(args)?;
        let written = |i: usize| packed.get(i / 8).is_some_and(|bits| bits >> (i % 8) & 1 == 1);
        match (procedure, &self.script) {
            (LOAD, _) => keys.for_each(|key| {
                out.begin(6).word("HSET").word(key).word("n").word("0").word("p").word(self.payload(key));
            }),
            (RUN, None) => block::write(out, |out| {
                for (i, key) in keys.enumerate() {
                    if written(i) {
                        out.command(&[b"HINCRBY", key, b"n", b"1"]).command(&[b"HGET", key, b"p"]);
                    } else {
                        out.command(&[b"HMGET", key, b"n", b"p"]);
                    }
                }
            }),
            (RUN, Some(script)) => {
                let digits: Vec<u8> = (0..keys.len()).map(|i| b'0' + u8::from(written(i))).collect();
                let out = script.call(out, keys.len(), 1);
                keys.for_each(|key| _ = out.word(key));
                out.word(digits);
            }
            _ => bail!("YCSB has no procedure {procedure}"),
        }
        Ok(())
    }

    fn loads(&self, procedure: ProcedureId) -> bool {
        procedure == LOAD
    }

    fn is_block(&self) -> bool {
        self.script.is_none()
    }

    fn read_block(&self, _: &[u8], reply: &mut Vec<u8>) -> anyhow::Result<()> {
        Writer(reply).nil();
        Ok(())
    }

    fn audit(&self, _: &[ProcedureId], link: &mut Link) -> anyhow::Result<Vec<Vec<u8>>> {
        let found = audit::numbers(
            link,
            self.records,
            |record, out| _ = out.begin(4).word("HMGET").word(key(record)).word("n").word("p"),
            |record, reply| {
                let (Datum::Array(2), rest) = Datum::split(reply)? else { return None };
                let (counter, rest) = Datum::split(rest)?;
                let payload = Datum::first(rest).as_bytes()?;
                audit::integer(counter).filter(|_| payload == self.payload(&key(record)))
            },
        )?;
        Ok(vec![audit::answer(&found)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{transcript, with_args};
    use super::*;

    fn form(script: Option<Script>) -> Ycsb {
        Ycsb { script, records: 9, record_bytes: 24 }
    }

    #[test]
    fn a_transaction_in_each_form() {
        let keys = [&key(1)[..], &key(2)];
        let args = with_args(&[keys[0], keys[1], &[0b10]]);
        let [one, two] = keys.map(|key| key.escape_ascii().to_string());
        assert_eq!(
            transcript(&form(None), RUN, &args),
            format!("MULTI\nHMGET {one} n p\nHINCRBY {two} n 1\nHGET {two} p\nEXEC\n")
        );
        assert_eq!(
            transcript(&form(Some(Script::kept("abc"))), RUN, &args),
            format!("EVALSHA abc 2 {one} {two} 01\n")
        );
    }

    #[test]
    fn a_record_is_loaded_with_the_payload_of_its_number() {
        let args = with_args(&[&key(7), &24u32.to_le_bytes()]);
        let (name, payload) =
            (key(7).escape_ascii().to_string(), initial(7, 24)[8..].escape_ascii().to_string());
        assert_eq!(transcript(&form(None), LOAD, &args), format!("HSET {name} n 0 p {payload}\n"));
    }
}
