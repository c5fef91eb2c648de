//! The numbers of the procedures, as the log knows them.
//!
//! A number is never given to another procedure and never changed: an old log must mean today what it meant
//! when it was written. Commands that differ only in name share a number.

use ordain_model::ProcedureId;

macro_rules! ids {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        $(#[doc = $doc] pub const $name: ProcedureId = ProcedureId($number);)*
    };
}

ids! {
    GET = 100, "GET.";
    SET = 101, "SET, and GETSET as `SET … GET`.";
    SETNX = 102, "SETNX.";
    SETEX = 103, "SETEX.";
    PSETEX = 104, "PSETEX.";
    GETDEL = 105, "GETDEL.";
    GETEX = 106, "GETEX.";
    MGET = 107, "MGET.";
    MSET = 108, "MSET.";
    MSETNX = 109, "MSETNX.";
    APPEND = 110, "APPEND.";
    STRLEN = 111, "STRLEN.";
    GETRANGE = 112, "GETRANGE and SUBSTR.";
    SETRANGE = 113, "SETRANGE.";
    INCR = 114, "INCR.";
    DECR = 115, "DECR.";
    INCRBY = 116, "INCRBY.";
    DECRBY = 117, "DECRBY.";
    INCRBYFLOAT = 118, "INCRBYFLOAT.";

    DEL = 200, "DEL and UNLINK.";
    EXISTS = 201, "EXISTS and TOUCH.";
    TYPE = 202, "TYPE.";
    RENAME = 203, "RENAME.";
    RENAMENX = 204, "RENAMENX.";
    COPY = 205, "COPY.";
    MOVE = 206, "MOVE.";
    KEYS = 207, "KEYS.";
    SCAN = 208, "SCAN.";
    RANDOMKEY = 209, "RANDOMKEY.";
    EXPIRE = 210, "EXPIRE.";
    PEXPIRE = 211, "PEXPIRE.";
    EXPIREAT = 212, "EXPIREAT.";
    PEXPIREAT = 213, "PEXPIREAT.";
    TTL = 214, "TTL.";
    PTTL = 215, "PTTL.";
    EXPIRETIME = 216, "EXPIRETIME.";
    PEXPIRETIME = 217, "PEXPIRETIME.";
    PERSIST = 218, "PERSIST.";
    DBSIZE = 219, "DBSIZE.";
    FLUSHALL = 220, "FLUSHALL.";
    FLUSHDB = 221, "FLUSHDB.";
    SWAPDB = 222, "SWAPDB.";
    OBJECT = 223, "OBJECT and its subcommands.";
    MEMORY = 224, "MEMORY and its subcommands.";

    HSET = 300, "HSET.";
    HSETNX = 301, "HSETNX.";
    HMSET = 302, "HMSET.";
    HGET = 303, "HGET.";
    HMGET = 304, "HMGET.";
    HGETALL = 305, "HGETALL.";
    HDEL = 306, "HDEL.";
    HEXISTS = 307, "HEXISTS.";
    HLEN = 308, "HLEN.";
    HKEYS = 309, "HKEYS.";
    HVALS = 310, "HVALS.";
    HSTRLEN = 311, "HSTRLEN.";
    HINCRBY = 312, "HINCRBY.";
    HINCRBYFLOAT = 313, "HINCRBYFLOAT.";
    HSCAN = 314, "HSCAN.";
    HRANDFIELD = 315, "HRANDFIELD.";

    EVAL = 400, "EVAL.";
    EVALSHA = 401, "EVALSHA.";
    EVAL_RO = 402, "EVAL_RO.";
    EVALSHA_RO = 403, "EVALSHA_RO.";
    FCALL = 404, "FCALL.";
    FCALL_RO = 405, "FCALL_RO.";
    SCRIPT_LOAD = 406, "SCRIPT LOAD.";
    SCRIPT_EXISTS = 407, "SCRIPT EXISTS.";
    SCRIPT_FLUSH = 408, "SCRIPT FLUSH.";
    FUNCTION_LOAD = 409, "FUNCTION LOAD.";
    FUNCTION_DELETE = 410, "FUNCTION DELETE.";
    FUNCTION_FLUSH = 411, "FUNCTION FLUSH.";
    FUNCTION_LIST = 412, "FUNCTION LIST.";
    FUNCTION_STATS = 413, "FUNCTION STATS.";
    FUNCTION_DUMP = 414, "FUNCTION DUMP.";
    FUNCTION_RESTORE = 415, "FUNCTION RESTORE.";

    EVAL_LIMITED = 420, "EVAL with the rights of a user before its arguments.";
    EVALSHA_LIMITED = 421, "EVALSHA with rights.";
    EVAL_RO_LIMITED = 422, "EVAL_RO with rights.";
    EVALSHA_RO_LIMITED = 423, "EVALSHA_RO with rights.";
    FCALL_LIMITED = 424, "FCALL with rights.";
    FCALL_RO_LIMITED = 425, "FCALL_RO with rights.";

    EVAL_FRUGAL = 430, "EVAL while memory is short.";
    EVALSHA_FRUGAL = 431, "EVALSHA while memory is short.";
    FCALL_FRUGAL = 432, "FCALL while memory is short.";
    EVAL_LIMITED_FRUGAL = 433, "EVAL with rights while memory is short.";
    EVALSHA_LIMITED_FRUGAL = 434, "EVALSHA with rights while memory is short.";
    FCALL_LIMITED_FRUGAL = 435, "FCALL with rights while memory is short.";
}

/// The first number of the procedures of workloads.
pub const FIRST_NATIVE: ProcedureId = ProcedureId(1000);
