"""The thread pool as LLVM IR text: fork-join over chunks that the caller and the workers claim one by one.

State, all in globals of one loaded copy; the first four lines share a cache line, since a worker needs all of them:
    @generation  counts regions; workers watch it, and sleep on it
    @body, @context, @chunks   the region; written only while @remaining is 0, read only after a claim
    @floats      the caller's floating-point mode, so that a result does not depend on who computes it; likewise
    @core        the core that the caller was on when the region began
    @remaining   chunks of the region at hand that nobody has claimed; a claim is one decrement
    @taken       of each thread's stretch of chunks, how many are taken, or more; a line of the cache for each
    @unfinished  chunks of the region that have not ended, or whose thread has not said so yet; the caller waits for 0
    @asleep      workers that sleep, or are about to
    @busy        1 while a region runs; whoever finds it 1 (a nested or concurrent call) runs serially
    @threads     the caller and its workers
    @started     1 once the workers run
    @epoch       a worker ends when it changes

A worker that finds nothing to do watches for a while: from asleep it takes tens of microseconds to be at work, longer
than many a region. Between looks it offers its core to others, so that watching costs nobody anything but power.

Where the caller and a worker share a core, they take turns there for tens of milliseconds, until the kernel finds
another one idle, and a region takes longer than on one thread; a worker that wakes up there does not even begin. So a
worker keeps off the last caller's core while it sleeps, and leaves the core of one that it finds there.

The chunks are cut into a stretch of neighbours for each thread, which takes those of its own first and then those that
others have left. So the next region finds a thread's part of an array in its core's cache, and threads write to one
line of the cache only where stretches meet. A claim says that there is a chunk, a stretch's counter which one it is.

Why a late worker can do no harm: it claims by a decrement of @remaining and reads the region only afterwards. A region
cannot end, nor another begin, while a claimed chunk is unfinished, so what it reads belongs to the chunk it claimed.
Why each claim finds a chunk: there are as many claims as chunks, and a stretch that is used up stays so. Were all of
them, one after the other, every chunk would have been taken by another claim.
Why no wake-up is lost: the caller bumps @generation and then reads @asleep; a worker raises @asleep and then lets the
kernel compare @generation with the value it saw before it last looked for chunks. One of them sees the other.
The caller never depends on a worker: alone, it finishes every chunk. So a forked child, which has no workers, works.
"""

from __future__ import annotations

from string import Template

from polyopt.classes import dataclass
from polyopt.settings import MOST_THREADS

INIT = "pool_init"
RUN = "pool_run"
STOP = "pool_stop"

_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
_SAVE_FLOATS = {
    "x86_64": "call void @llvm.x86.sse.stmxcsr(ptr @floats)",
    "aarch64": "%floats = call i64 @llvm.aarch64.get.fpcr()\n  store i64 %floats, ptr @floats",
}
_TAKE_FLOATS = {
    "x86_64": "call void @llvm.x86.sse.ldmxcsr(ptr @floats)",
    "aarch64": "%floats = load i64, ptr @floats\n  call void @llvm.aarch64.set.fpcr(i64 %floats)",
}
_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
}
_DECLARATIONS = {
    "x86_64": """\
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()""",
    "aarch64": """\
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.hint(i32)""",
}
_SIG_SETMASK = 2
_FAULTS = (4, 5, 7, 8, 11, 31)
"""SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: they must reach the thread that caused them."""

ARCHITECTURES = tuple(_FUTEX_NUMBER)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long threads wait. A pause is 10 to 60 ns, by processor.

    pauses: of an idle worker before it offers its core to others, each time
    offers: of its core before an idle worker sleeps
    caller: pauses before a caller that waits for claimed chunks offers its core each time
    """

    pauses: int
    offers: int
    caller: int


def pool_ir(architecture: str, patience: Patience) -> str:
    """The pool on Linux. architecture: one of `ARCHITECTURES`"""
    every_signal_but_faults = ~sum(1 << (number - 1) for number in _FAULTS)
    return _POOL.substitute(
        most=MOST_THREADS,
        pauses=patience.pauses,
        offers=patience.offers,
        caller_spins=patience.caller,
        futex=_FUTEX_NUMBER[architecture],
        wait=_FUTEX_WAIT_PRIVATE,
        wake=_FUTEX_WAKE_PRIVATE,
        save_floats=_SAVE_FLOATS[architecture],
        take_floats=_TAKE_FLOATS[architecture],
        pause=_PAUSE[architecture],
        declarations=_DECLARATIONS[architecture],
        set_mask=_SIG_SETMASK,
        mask=every_signal_but_faults,
    )


_POOL = Template("""\
%region = type { i32, i32, ptr, ptr, i64, i64, i32 }
%line   = type { i64, [56 x i8] }
@region     = internal global %region zeroinitializer, align 64
@generation = internal alias i32, ptr @region
@body       = internal alias ptr, getelementptr (%region, ptr @region, i64 0, i32 2)
@context    = internal alias ptr, getelementptr (%region, ptr @region, i64 0, i32 3)
@chunks     = internal alias i64, getelementptr (%region, ptr @region, i64 0, i32 4)
@floats     = internal alias i64, getelementptr (%region, ptr @region, i64 0, i32 5)
@core       = internal alias i32, getelementptr (%region, ptr @region, i64 0, i32 6)
@remaining  = internal global i64 0, align 64
@unfinished = internal global i64 0, align 64
@asleep     = internal global i32 0, align 64
@busy       = internal global i32 0, align 64
@taken      = internal global [$most x %line] zeroinitializer, align 64
@threads    = internal global i64 1
@started    = internal global i32 0
@epoch      = internal global i32 0, align 64

$declarations
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)

; The chunk that a claim of the thread in a slot gets: the next of its own stretch or, where that is used up, of the
; first stretch after it that is not.
define internal i64 @place(i64 %slot, i64 %chunks) #0 {
entry:
  %threads = load i64, ptr @threads
  %each = udiv i64 %chunks, %threads
  %longer = urem i64 %chunks, %threads
  br label %look
look:
  %stretch = phi i64 [ %slot, %entry ], [ %next, %go_on ]
  %is_longer = icmp ult i64 %stretch, %longer
  %one_more = zext i1 %is_longer to i64
  %length = add i64 %each, %one_more
  %counter = getelementptr %line, ptr @taken, i64 %stretch
  %number = atomicrmw add ptr %counter, i64 1 monotonic
  %has_it = icmp ult i64 %number, %length
  br i1 %has_it, label %found, label %go_on
go_on:
  %after = add i64 %stretch, 1
  %is_last = icmp eq i64 %after, %threads
  %next = select i1 %is_last, i64 0, i64 %after
  br label %look
found:
  %before = select i1 %is_longer, i64 %stretch, i64 %longer
  %whole = mul i64 %stretch, %each
  %first = add i64 %whole, %before
  %chunk = add i64 %first, %number
  ret i64 %chunk
}

; Claims and runs chunks until none is left, and then says how many it has run.
define internal void @work(i64 %slot) #0 {
entry:
  br label %look
look:
  %ran = phi i64 [ 0, %entry ], [ %ran, %claim ], [ %ran1, %call ]
  %left = load atomic i64, ptr @remaining acquire, align 8
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %claim, label %done
claim:
  %fewer = sub nsw i64 %left, 1
  %swap = cmpxchg ptr @remaining, i64 %left, i64 %fewer acq_rel monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %run, label %look
run:
  %helps = icmp ne i64 %slot, 0
  br i1 %helps, label %adopt, label %call
adopt:
  $take_floats
  br label %call
call:
  %body = load ptr, ptr @body
  %context = load ptr, ptr @context
  %chunks = load i64, ptr @chunks
  %chunk = call i64 @place(i64 %slot, i64 %chunks)
  call void %body(ptr %context, i64 %chunk, i64 %chunks, i64 %slot)
  %ran1 = add nuw nsw i64 %ran, 1
  br label %look
done:
  %any = icmp ne i64 %ran, 0
  br i1 %any, label %say, label %leave
say:
  %before = atomicrmw sub ptr @unfinished, i64 %ran release
  br label %leave
leave:
  ret void
}

; Keeps the calling thread off a core, if it may use others. What it may use goes to %own, and without the core to
; %others. Fails with one core, with more than 1024, and where the system does not allow it.
define internal i1 @keep_off(i32 %core, ptr %own, ptr %others) #0 {
entry:
  %unknown = call i32 @sched_getaffinity(i32 0, i64 128, ptr %own)
  %known = icmp eq i32 %unknown, 0
  %small = icmp ult i32 %core, 1024
  %can = and i1 %known, %small
  br i1 %can, label %choose, label %fail
choose:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %own, i64 128, i1 false)
  %word = lshr i32 %core, 6
  %place = getelementptr i64, ptr %others, i32 %word
  %bits = load i64, ptr %place
  %low = and i32 %core, 63
  %shift = zext i32 %low to i64
  %bit = shl i64 1, %shift
  %all_but = xor i64 %bit, -1
  %rest = and i64 %bits, %all_but
  store i64 %rest, ptr %place
  %refused = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)
  %moved = icmp eq i32 %refused, 0
  ret i1 %moved
fail:
  ret i1 false
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Lets a thread that was kept off a core use it again, unless somebody has said meanwhile which ones it may use.
define internal void @let_back(ptr %own, ptr %others) #0 {
entry:
  %now = alloca [16 x i64], align 16
  %unknown = call i32 @sched_getaffinity(i32 0, i64 128, ptr %now)
  %differ = call i32 @memcmp(ptr %now, ptr %others, i64 128)
  %changed = or i32 %unknown, %differ
  %same = icmp eq i32 %changed, 0
  br i1 %same, label %free, label %done
free:
  %refused = call i32 @sched_setaffinity(i32 0, i64 128, ptr %own)
  br label %done
done:
  ret void
}
declare i32 @memcmp(ptr, ptr, i64)

; A worker's life: work, watch for a new region for a while, sleep.
; Its argument holds the epoch in the high half and the slot in the low one.
define internal ptr @worker(ptr %argument) #0 {
entry:
  %own = alloca [16 x i64], align 16
  %others = alloca [16 x i64], align 16
  %packed = ptrtoint ptr %argument to i64
  %slot = and i64 %packed, 4294967295
  %born64 = lshr i64 %packed, 32
  %born = trunc i64 %born64 to i32
  br label %awake
awake:
  %seen = load atomic i32, ptr @generation seq_cst, align 4
  %epoch = load atomic i32, ptr @epoch seq_cst, align 4
  %go_on = icmp eq i32 %epoch, %born
  br i1 %go_on, label %look, label %end
look:
  %here = call i32 @sched_getcpu()
  %callers = load atomic i32, ptr @core monotonic, align 4
  %together = icmp eq i32 %here, %callers
  br i1 %together, label %part, label %work
part:
  %parted = call i1 @keep_off(i32 %here, ptr %own, ptr %others)
  br i1 %parted, label %back, label %work
back:
  call void @let_back(ptr %own, ptr %others)
  br label %work
work:
  call void @work(i64 %slot)
  br label %watch
watch:
  %offer = phi i32 [ 0, %work ], [ %next_offer, %give_way ]
  br label %glance
glance:
  %spin = phi i32 [ 0, %watch ], [ %next_spin, %pause ]
  %now = load atomic i32, ptr @generation acquire, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %pause, label %awake
pause:
  $pause
  %next_spin = add nuw i32 %spin, 1
  %looks_on = icmp ult i32 %next_spin, $pauses
  br i1 %looks_on, label %glance, label %offer_core
offer_core:
  %next_offer = add nuw i32 %offer, 1
  %patient = icmp ult i32 %offer, $offers
  br i1 %patient, label %give_way, label %sleep
give_way:
  %yielded = call i32 @sched_yield()
  br label %watch
sleep:
  %core = load atomic i32, ptr @core monotonic, align 4
  %kept = call i1 @keep_off(i32 %core, ptr %own, ptr %others)
  %up = atomicrmw add ptr @asleep, i32 1 seq_cst
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr @generation, i32 $wait, i32 %seen, ptr null, ptr null, i32 0)
  %down = atomicrmw sub ptr @asleep, i32 1 seq_cst
  br i1 %kept, label %rise, label %awake
rise:
  call void @let_back(ptr %own, ptr %others)
  br label %awake
end:
  ret ptr null
}

; Announces a change of @generation to workers that sleep.
define internal void @announce() #0 {
entry:
  %bumped = atomicrmw add ptr @generation, i32 1 seq_cst
  %sleepers = load atomic i32, ptr @asleep seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %done
wake:
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr @generation, i32 $wake, i32 2147483647, ptr null, ptr null, i32 0)
  br label %done
done:
  ret void
}

; Starts the workers, with the signals of the process left to its other threads. Fewer than asked for will do.
define internal void @start() noinline #0 {
entry:
  %thread = alloca i64, align 8
  %blocked = alloca [16 x i64], align 16
  %old = alloca [16 x i64], align 16
  call void @llvm.memset.p0.i64(ptr %blocked, i8 -1, i64 128, i1 false)
  store i64 $mask, ptr %blocked, align 16
  %masked = call i32 @pthread_sigmask(i32 $set_mask, ptr %blocked, ptr %old)
  %threads = load i64, ptr @threads
  %epoch32 = load atomic i32, ptr @epoch monotonic, align 4
  %epoch = zext i32 %epoch32 to i64
  %high = shl i64 %epoch, 32
  br label %next
next:
  %slot = phi i64 [ 1, %entry ], [ %slot1, %created ]
  %more = icmp slt i64 %slot, %threads
  br i1 %more, label %create, label %done
create:
  %packed = or i64 %high, %slot
  %argument = inttoptr i64 %packed to ptr
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %argument)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %created, label %done
created:
  %handle = load i64, ptr %thread, align 8
  %detached = call i32 @pthread_detach(i64 %handle)
  %slot1 = add nuw nsw i64 %slot, 1
  br label %next
done:
  %unmasked = call i32 @pthread_sigmask(i32 $set_mask, ptr %old, ptr null)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define void @pool_run(ptr %body, ptr %context, i64 %chunks) #0 {
entry:
  %several = icmp sgt i64 %chunks, 1
  br i1 %several, label %ask, label %serial
ask:
  %swap = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %parallel, label %serial
serial:
  br label %next
next:
  %chunk = phi i64 [ 0, %serial ], [ %chunk1, %one ]
  %more = icmp slt i64 %chunk, %chunks
  br i1 %more, label %one, label %done
one:
  call void %body(ptr %context, i64 %chunk, i64 %chunks, i64 0)
  %chunk1 = add nuw nsw i64 %chunk, 1
  br label %next
parallel:
  %started = load i32, ptr @started
  %fresh = icmp eq i32 %started, 0
  br i1 %fresh, label %first, label %publish
first:
  store i32 1, ptr @started
  call void @start()
  br label %publish
publish:
  store ptr %body, ptr @body
  store ptr %context, ptr @context
  store i64 %chunks, ptr @chunks
  $save_floats
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr @core monotonic, align 4
  %limit = load i64, ptr @threads
  br label %clear
clear:
  %stretch = phi i64 [ 0, %publish ], [ %stretch1, %clear ]
  %counter = getelementptr %line, ptr @taken, i64 %stretch
  store atomic i64 0, ptr %counter monotonic, align 64
  %stretch1 = add nuw nsw i64 %stretch, 1
  %cleared = icmp eq i64 %stretch1, %limit
  br i1 %cleared, label %open, label %clear
open:
  store atomic i64 %chunks, ptr @unfinished monotonic, align 8
  store atomic i64 %chunks, ptr @remaining release, align 8
  call void @announce()
  call void @work(i64 0)
  br label %wait
wait:
  %spin = phi i32 [ 0, %open ], [ %next_spin, %spun ], [ %spin, %yield ]
  %left = load atomic i64, ptr @unfinished acquire, align 8
  %finished = icmp eq i64 %left, 0
  br i1 %finished, label %release, label %pause
pause:
  $pause
  %patient = icmp ult i32 %spin, $caller_spins
  br i1 %patient, label %spun, label %yield
spun:
  %next_spin = add nuw i32 %spin, 1
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
release:
  store atomic i32 0, ptr @busy release, align 4
  br label %done
done:
  ret void
}

; For `threads` threads, with no worker and no region: before first use, and in a forked child, where only the thread
; that forked lives on.
define void @pool_init(i64 %threads) #0 {
entry:
  store i64 %threads, ptr @threads
  store i64 0, ptr @remaining
  store i64 0, ptr @unfinished
  store i32 0, ptr @asleep
  store i32 0, ptr @started
  store i32 0, ptr @busy
  ret void
}

; Ends the workers once no region runs; the next region starts new ones.
define void @pool_stop() #0 {
entry:
  br label %ask
ask:
  %swap = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %stop, label %wait
wait:
  %yielded = call i32 @sched_yield()
  br label %ask
stop:
  %bumped = atomicrmw add ptr @epoch, i32 1 seq_cst
  store i32 0, ptr @started
  call void @announce()
  store atomic i32 0, ptr @busy release, align 4
  ret void
}

attributes #0 = { nounwind uwtable }
""")
