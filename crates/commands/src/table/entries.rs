//! The commands, one line each: the name and the answerer. The rest is what the [reference](super::reference) says of the
//! name.

use super::SessionCommand::*;
use super::reference::{is_container, of_command};
use super::{Action, Command, Flags, SessionCommand, encode_all, encode_getset};
use crate::ids;
use crate::script::{encode_eval, encode_evalsha};
use ordain_model::ProcedureId;

const fn command(name: &'static str, action: Action) -> Command {
    let reference = of_command(name);
    let flags = Flags::of(reference.flags);
    let flags = if is_container(reference) { flags.and(Flags::CONTAINER) } else { flags };
    let (first_key, last_key, step) = reference.keys;
    Command { name, arity: reference.arity, flags, first_key, last_key, step, action }
}

const fn procedure(name: &'static str, id: ProcedureId) -> Command {
    command(name, Action::Procedure { id, encode: encode_all })
}

/// A container whose subcommands look at a key.
const fn of_key(name: &'static str, id: ProcedureId) -> Command {
    let container = procedure(name, id);
    let flags = container.flags.and(Flags::READONLY);
    Command { flags, first_key: 2, last_key: 2, step: 1, ..container }
}

const fn script(name: &'static str, id: ProcedureId) -> Command {
    command(name, Action::Procedure { id, encode: encode_eval })
}

const fn script_by_sha(name: &'static str, id: ProcedureId) -> Command {
    command(name, Action::Procedure { id, encode: encode_evalsha })
}

const fn function(name: &'static str, read_only: bool) -> Command {
    command(name, Action::Function { read_only })
}

const fn session(name: &'static str, answers: SessionCommand) -> Command {
    command(name, Action::Session(answers))
}

/// MEMORY, where the node answers it.
pub(super) static MEMORY_OF_NODE: Command = session("memory", Memory);

/// All commands.
pub(super) const COMMANDS: &[Command] = &[
    procedure("get", ids::GET),
    procedure("set", ids::SET),
    procedure("setnx", ids::SETNX),
    procedure("setex", ids::SETEX),
    procedure("psetex", ids::PSETEX),
    command("getset", Action::Procedure { id: ids::SET, encode: encode_getset }),
    procedure("getdel", ids::GETDEL),
    procedure("getex", ids::GETEX),
    procedure("mget", ids::MGET),
    procedure("mset", ids::MSET),
    procedure("msetnx", ids::MSETNX),
    procedure("append", ids::APPEND),
    procedure("strlen", ids::STRLEN),
    procedure("getrange", ids::GETRANGE),
    procedure("substr", ids::GETRANGE),
    procedure("setrange", ids::SETRANGE),
    procedure("incr", ids::INCR),
    procedure("decr", ids::DECR),
    procedure("incrby", ids::INCRBY),
    procedure("decrby", ids::DECRBY),
    procedure("incrbyfloat", ids::INCRBYFLOAT),
    procedure("del", ids::DEL),
    procedure("unlink", ids::DEL),
    procedure("exists", ids::EXISTS),
    procedure("type", ids::TYPE),
    procedure("touch", ids::EXISTS),
    procedure("rename", ids::RENAME),
    procedure("renamenx", ids::RENAMENX),
    procedure("copy", ids::COPY),
    procedure("move", ids::MOVE),
    procedure("keys", ids::KEYS),
    procedure("scan", ids::SCAN),
    procedure("randomkey", ids::RANDOMKEY),
    procedure("expire", ids::EXPIRE),
    procedure("pexpire", ids::PEXPIRE),
    procedure("expireat", ids::EXPIREAT),
    procedure("pexpireat", ids::PEXPIREAT),
    procedure("ttl", ids::TTL),
    procedure("pttl", ids::PTTL),
    procedure("expiretime", ids::EXPIRETIME),
    procedure("pexpiretime", ids::PEXPIRETIME),
    procedure("persist", ids::PERSIST),
    procedure("dbsize", ids::DBSIZE),
    procedure("flushall", ids::FLUSHALL),
    procedure("flushdb", ids::FLUSHDB),
    procedure("swapdb", ids::SWAPDB),
    of_key("object", ids::OBJECT),
    of_key("memory", ids::MEMORY),
    procedure("hset", ids::HSET),
    procedure("hsetnx", ids::HSETNX),
    procedure("hmset", ids::HMSET),
    procedure("hget", ids::HGET),
    procedure("hmget", ids::HMGET),
    procedure("hgetall", ids::HGETALL),
    procedure("hdel", ids::HDEL),
    procedure("hexists", ids::HEXISTS),
    procedure("hlen", ids::HLEN),
    procedure("hkeys", ids::HKEYS),
    procedure("hvals", ids::HVALS),
    procedure("hstrlen", ids::HSTRLEN),
    procedure("hincrby", ids::HINCRBY),
    procedure("hincrbyfloat", ids::HINCRBYFLOAT),
    procedure("hscan", ids::HSCAN),
    procedure("hrandfield", ids::HRANDFIELD),
    script("eval", ids::EVAL),
    script_by_sha("evalsha", ids::EVALSHA),
    script("eval_ro", ids::EVAL_RO),
    script_by_sha("evalsha_ro", ids::EVALSHA_RO),
    function("fcall", false),
    function("fcall_ro", true),
    session("ping", Ping),
    session("echo", Echo),
    session("hello", Hello),
    session("auth", Auth),
    session("acl", Acl),
    session("quit", Quit),
    session("reset", Reset),
    session("select", Select),
    session("client", Client),
    session("command", SessionCommand::Command),
    session("info", Info),
    session("config", Config),
    session("time", Time),
    session("multi", Multi),
    session("exec", Exec),
    session("discard", Discard),
    session("watch", Watch),
    session("unwatch", Unwatch),
    session("debug", Debug),
    session("script", Script),
    session("function", Function),
    session("save", Save),
    session("bgsave", BgSave),
    session("lastsave", LastSave),
    session("slowlog", SlowLog),
    session("latency", Latency),
    session("txn.begin", TxnBegin),
    session("txn.commit", TxnCommit),
    session("txn.abort", TxnAbort),
    session("publish", Publish),
    session("spublish", Publish),
    session("subscribe", Subscribe),
    session("unsubscribe", Subscribe),
    session("psubscribe", Subscribe),
    session("punsubscribe", Subscribe),
    session("ssubscribe", Subscribe),
    session("sunsubscribe", Subscribe),
    session("pubsub", PubSub),
    session("wait", Wait),
    session("role", Role),
    session("module", Module),
];
