//! The numbers of the procedures, as the log knows them.
//!
//! A number is never given to another procedure and never changed: an old log must mean today what it meant
//! when it was written. Commands that differ only in name share a number.

use ordain_model::ProcedureId;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        $($(#[$doc])* pub const $name: ProcedureId = ProcedureId($number);)*
    };
}

ids! {
    /// GET.
    GET = 100;
    /// SET, and GETSET as `SET … GET`.
    SET = 101;
    /// SETNX.
    SETNX = 102;
    /// SETEX.
    SETEX = 103;
    /// PSETEX.
    PSETEX = 104;
    /// GETDEL.
    GETDEL = 105;
    /// GETEX.
    GETEX = 106;
    /// MGET.
    MGET = 107;
    /// MSET.
    MSET = 108;
    /// MSETNX.
    MSETNX = 109;
    /// APPEND.
    APPEND = 110;
    /// STRLEN.
    STRLEN = 111;
    /// GETRANGE and SUBSTR.
    GETRANGE = 112;
    /// SETRANGE.
    SETRANGE = 113;
    /// INCR.
    INCR = 114;
    /// DECR.
    DECR = 115;
    /// INCRBY.
    INCRBY = 116;
    /// DECRBY.
    DECRBY = 117;
    /// INCRBYFLOAT.
    INCRBYFLOAT = 118;

    /// DEL and UNLINK.
    DEL = 200;
    /// EXISTS and TOUCH.
    EXISTS = 201;
    /// TYPE.
    TYPE = 202;
    /// RENAME.
    RENAME = 203;
    /// RENAMENX.
    RENAMENX = 204;
    /// COPY.
    COPY = 205;
    /// MOVE.
    MOVE = 206;
    /// KEYS.
    KEYS = 207;
    /// SCAN.
    SCAN = 208;
    /// RANDOMKEY.
    RANDOMKEY = 209;
    /// EXPIRE.
    EXPIRE = 210;
    /// PEXPIRE.
    PEXPIRE = 211;
    /// EXPIREAT.
    EXPIREAT = 212;
    /// PEXPIREAT.
    PEXPIREAT = 213;
    /// TTL.
    TTL = 214;
    /// PTTL.
    PTTL = 215;
    /// EXPIRETIME.
    EXPIRETIME = 216;
    /// PEXPIRETIME.
    PEXPIRETIME = 217;
    /// PERSIST.
    PERSIST = 218;
    /// DBSIZE.
    DBSIZE = 219;
    /// FLUSHALL.
    FLUSHALL = 220;
    /// FLUSHDB.
    FLUSHDB = 221;
    /// SWAPDB.
    SWAPDB = 222;
    /// OBJECT and its subcommands.
    OBJECT = 223;
    /// MEMORY and its subcommands.
    MEMORY = 224;

    /// HSET.
    HSET = 300;
    /// HSETNX.
    HSETNX = 301;
    /// HMSET.
    HMSET = 302;
    /// HGET.
    HGET = 303;
    /// HMGET.
    HMGET = 304;
    /// HGETALL.
    HGETALL = 305;
    /// HDEL.
    HDEL = 306;
    /// HEXISTS.
    HEXISTS = 307;
    /// HLEN.
    HLEN = 308;
    /// HKEYS.
    HKEYS = 309;
    /// HVALS.
    HVALS = 310;
    /// HSTRLEN.
    HSTRLEN = 311;
    /// HINCRBY.
    HINCRBY = 312;
    /// HINCRBYFLOAT.
    HINCRBYFLOAT = 313;
    /// HSCAN.
    HSCAN = 314;
    /// HRANDFIELD.
    HRANDFIELD = 315;

    /// EVAL.
    EVAL = 400;
    /// EVALSHA.
    EVALSHA = 401;
    /// EVAL_RO.
    EVAL_RO = 402;
    /// EVALSHA_RO.
    EVALSHA_RO = 403;
    /// FCALL.
    FCALL = 404;
    /// FCALL_RO.
    FCALL_RO = 405;
    /// SCRIPT LOAD.
    SCRIPT_LOAD = 406;
    /// SCRIPT EXISTS.
    SCRIPT_EXISTS = 407;
    /// SCRIPT FLUSH.
    SCRIPT_FLUSH = 408;
    /// FUNCTION LOAD.
    FUNCTION_LOAD = 409;
    /// FUNCTION DELETE.
    FUNCTION_DELETE = 410;
    /// FUNCTION FLUSH.
    FUNCTION_FLUSH = 411;
    /// FUNCTION LIST.
    FUNCTION_LIST = 412;
    /// FUNCTION STATS.
    FUNCTION_STATS = 413;
    /// FUNCTION DUMP.
    FUNCTION_DUMP = 414;
    /// FUNCTION RESTORE.
    FUNCTION_RESTORE = 415;

    /// EVAL with the rights of a user before its arguments.
    EVAL_LIMITED = 420;
    /// EVALSHA with rights.
    EVALSHA_LIMITED = 421;
    /// EVAL_RO with rights.
    EVAL_RO_LIMITED = 422;
    /// EVALSHA_RO with rights.
    EVALSHA_RO_LIMITED = 423;
    /// FCALL with rights.
    FCALL_LIMITED = 424;
    /// FCALL_RO with rights.
    FCALL_RO_LIMITED = 425;

    /// EVAL while memory is short.
    EVAL_FRUGAL = 430;
    /// EVALSHA while memory is short.
    EVALSHA_FRUGAL = 431;
    /// FCALL while memory is short.
    FCALL_FRUGAL = 432;
    /// EVAL with rights while memory is short.
    EVAL_LIMITED_FRUGAL = 433;
    /// EVALSHA with rights while memory is short.
    EVALSHA_LIMITED_FRUGAL = 434;
    /// FCALL with rights while memory is short.
    FCALL_LIMITED_FRUGAL = 435;
}

/// The first number of the procedures of workloads.
pub const FIRST_NATIVE: ProcedureId = ProcedureId(1000);
