"""The quick way into kernels as LLVM IR text: a C function of Python that looks at its arguments itself.

`fast_call(self, args, count)` has the calling convention of METH_FASTCALL. `self` is a NumPy array of 64-bit words: how
many entries there are, then their addresses. An entry describes one kind of call (all in words):

    0  address of the kernel                         8  address of the tail
    1  number of arguments                           9  the type numpy.ndarray
    2  number of i64 parameters                     10  the type int
    3  address of [pool_run, slots], 0: serial      11  how many results are made
    4  bytes of shared workspace                    12  how many of the last arguments are results
    5  bytes of private workspace per slot          13  what puts several results together, 0: a tuple
    6  number of arrays that the kernel takes       14  for each argument what it must be:
    7  what raises the error of a check, 0: none

        0, dtype object, rank, alignment mask, then extent and stride of each dimension   an array
        1, type                 a float of Python or NumPy's of 64 bits, for an f64           2, type    for an f32
        3, least, most          an int, for an integer        4, 5, most   an int that is exact, for an f64 or f32
        6, object               this very object (a compile-time value)
        7, as for 0             an array to write to
        8, type                 a number of NumPy, of the dtype that the kernel reads

    tail: for each array of the kernel the number of its argument, or -1 - the number of a result;
          for each result its maker and the maker's arguments, a tuple;
          the i64 parameters;
          for each argument the lowest byte it touches, from its pointer, and the one behind the highest; 1 and 0 for
          a number;
          for each argument to write to, for each argument: whether they may be the same memory

The first entry that fits the arguments is run: results are made, workspace is taken from the stack or is a kept block,
the GIL is released around the kernel. The value is the result, or the last argument where results are arguments; None
where no entry fits, and the caller takes the careful way. Nothing that the function reads changes or goes while it
runs: whoever calls it holds it, it holds `self`, and `self` holds the entries (`fastcall.py`). The offsets are those of
CPython's and NumPy's C structures; `fastcall.py` tries the whole on examples before it trusts it.
"""

from __future__ import annotations

from string import Template

CALL = "fast_call"
TRIAL = "trial_kernel"

STACK_BYTES = 1 << 13
"""More workspace than this comes from the C library, and is kept for the next call: what a result and a workspace of
its size give back together, the C library returns to the system, and each call would wait for every page anew."""

HEAP_BYTES = 1 << 20
"""More than this is neither: such calls take the careful way, some microseconds longer."""

FIRST_DESCRIPTION = 14
ARRAY, FLOAT_F64, FLOAT_F32, INT, INT_F64, INT_F32, SAME, WRITTEN, SCALAR = range(9)


def fast_call_ir() -> str:
    """The module: `fast_call`, and `trial_kernel` (`out[0] = x[0] + parameter`, given x, y and out) to try it with."""
    return _MODULE.substitute(stack=STACK_BYTES, heap=HEAP_BYTES, first=FIRST_DESCRIPTION)


_MODULE = Template("""\
@_Py_NoneStruct = external global i8
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallObject(ptr, ptr)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @Py_BuildValue(ptr, ...)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
@kept = internal global ptr null
@three = private constant [6 x i8] c"(LLL)\\00"

define internal i64 @word(ptr %words, i64 %position) alwaysinline {
  %place = getelementptr i64, ptr %words, i64 %position
  %value = load i64, ptr %place
  ret i64 %value
}

define internal ptr @pointer_word(ptr %words, i64 %position) alwaysinline {
  %value = call i64 @word(ptr %words, i64 %position)
  %pointer = inttoptr i64 %value to ptr
  ret ptr %pointer
}

define internal i64 @field(ptr %object, i64 %offset) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %value = load i64, ptr %place
  ret i64 %value
}

define internal ptr @argument(ptr %args, i64 %position) alwaysinline {
  %place = getelementptr ptr, ptr %args, i64 %position
  %value = load ptr, ptr %place
  ret ptr %value
}

define internal ptr @none() {
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}

; A block for a workspace, which begins with the number of bytes it has room for; null where there is none. Like what
; follows it is called with the GIL held: no other thread sees @kept in between.
define internal ptr @block(i64 %bytes) {
  %kept = load ptr, ptr @kept
  %is_kept = icmp ne ptr %kept, null
  br i1 %is_kept, label %look, label %new
look:
  %room = load i64, ptr %kept
  %fits = icmp uge i64 %room, %bytes
  br i1 %fits, label %take, label %new
take:
  store ptr null, ptr @kept
  ret ptr %kept
new:
  %size = add i64 %bytes, 128
  %made = call ptr @PyMem_RawMalloc(i64 %size)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %done, label %note
note:
  store i64 %bytes, ptr %made
  br label %done
done:
  ret ptr %made
}

; Keeps a block, or the larger one that was put back meanwhile.
define internal void @put_back(ptr %block) {
  %other = load ptr, ptr @kept
  %is_alone = icmp eq ptr %other, null
  br i1 %is_alone, label %keep, label %compare
compare:
  %room = load i64, ptr %block
  %other_room = load i64, ptr %other
  %is_smaller = icmp ult i64 %room, %other_room
  br i1 %is_smaller, label %drop, label %keep
drop:
  call void @PyMem_RawFree(ptr %block)
  ret void
keep:
  store ptr %block, ptr @kept
  call void @PyMem_RawFree(ptr %other)
  ret void
}

; Whether two dtypes of numbers are equal: of one type of scalar and one byte order. An array that was pickled has a
; dtype object of its own.
define internal i1 @same_dtype(i64 %found_word, i64 %wanted_word) alwaysinline {
  %found = inttoptr i64 %found_word to ptr
  %wanted = inttoptr i64 %wanted_word to ptr
  %found_type = call i64 @field(ptr %found, i64 16)
  %wanted_type = call i64 @field(ptr %wanted, i64 16)
  %same_type = icmp eq i64 %found_type, %wanted_type
  %found_place = getelementptr i8, ptr %found, i64 26
  %wanted_place = getelementptr i8, ptr %wanted, i64 26
  %found_order = load i8, ptr %found_place
  %wanted_order = load i8, ptr %wanted_place
  %same_order = icmp eq i8 %found_order, %wanted_order
  %same = and i1 %same_type, %same_order
  ret i1 %same
}

; Whether one array is of the dtype, rank, alignment, extents and strides at %expected, which begins with the kind.
define internal i1 @fits_array(ptr %array, ptr %expected, i64 %array_type) {
entry:
  %type = call i64 @field(ptr %array, i64 8)
  %is_array = icmp eq i64 %type, %array_type
  br i1 %is_array, label %look, label %no
look:
  %dtype = call i64 @field(ptr %array, i64 56)
  %wanted_dtype = call i64 @word(ptr %expected, i64 1)
  %same_dtype = call i1 @same_dtype(i64 %dtype, i64 %wanted_dtype)
  %rank_place = getelementptr i8, ptr %array, i64 24
  %rank32 = load i32, ptr %rank_place
  %rank = sext i32 %rank32 to i64
  %wanted_rank = call i64 @word(ptr %expected, i64 2)
  %same_rank = icmp eq i64 %rank, %wanted_rank
  %data = call i64 @field(ptr %array, i64 16)
  %mask = call i64 @word(ptr %expected, i64 3)
  %low = and i64 %data, %mask
  %aligned = icmp eq i64 %low, 0
  %two = and i1 %same_dtype, %same_rank
  %three = and i1 %two, %aligned
  br i1 %three, label %writing, label %no
writing:
  %kind = call i64 @word(ptr %expected, i64 0)
  %is_written = icmp eq i64 %kind, 7
  br i1 %is_written, label %flags, label %dimensions
flags:
  %flags_place = getelementptr i8, ptr %array, i64 64
  %flags_word = load i32, ptr %flags_place
  %writable = and i32 %flags_word, 1024
  %may = icmp ne i32 %writable, 0
  br i1 %may, label %dimensions, label %no
dimensions:
  %extents_word = call i64 @field(ptr %array, i64 32)
  %extents = inttoptr i64 %extents_word to ptr
  %strides_word = call i64 @field(ptr %array, i64 40)
  %strides = inttoptr i64 %strides_word to ptr
  br label %next
next:
  %d = phi i64 [ 0, %dimensions ], [ %d1, %same ]
  %more = icmp slt i64 %d, %rank
  br i1 %more, label %compare, label %yes
compare:
  %extent = call i64 @word(ptr %extents, i64 %d)
  %stride = call i64 @word(ptr %strides, i64 %d)
  %twice = shl i64 %d, 1
  %at = add i64 %twice, 4
  %at1 = add i64 %twice, 5
  %wanted_extent = call i64 @word(ptr %expected, i64 %at)
  %wanted_stride = call i64 @word(ptr %expected, i64 %at1)
  %same_extent = icmp eq i64 %extent, %wanted_extent
  %same_stride = icmp eq i64 %stride, %wanted_stride
  %both = and i1 %same_extent, %same_stride
  br i1 %both, label %same, label %no
same:
  %d1 = add i64 %d, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether a number is what %expected wants. Its value goes to %slot, as the kernel reads it.
define internal i1 @fits_number(ptr %object, ptr %expected, i64 %kind, ptr %entry_words, ptr %slot) {
entry:
  %overflow = alloca i32
  %type = call i64 @field(ptr %object, i64 8)
  switch i64 %kind, label %int [ i64 1, label %float i64 2, label %float i64 8, label %scalar ]
scalar:
  %scalar_type = call i64 @word(ptr %expected, i64 1)
  %is_scalar = icmp eq i64 %type, %scalar_type
  br i1 %is_scalar, label %bits, label %no
bits:
  %scalar_bits = call i64 @field(ptr %object, i64 16)
  store i64 %scalar_bits, ptr %slot
  ret i1 true
float:
  %float_type = call i64 @word(ptr %expected, i64 1)
  %is_float = icmp eq i64 %type, %float_type
  br i1 %is_float, label %value, label %no
value:
  %value_place = getelementptr i8, ptr %object, i64 16
  %number = load double, ptr %value_place
  %is_double = icmp eq i64 %kind, 1
  br i1 %is_double, label %double, label %single
double:
  store double %number, ptr %slot
  ret i1 true
single:
  %magnitude = call double @llvm.fabs.f64(double %number)
  %fits = fcmp ole double %magnitude, 1.0e38
  br i1 %fits, label %narrow, label %no
narrow:
  %narrowed = fptrunc double %number to float
  store float %narrowed, ptr %slot
  ret i1 true
int:
  %int_type = call i64 @word(ptr %entry_words, i64 10)
  %is_int = icmp eq i64 %type, %int_type
  br i1 %is_int, label %read, label %no
read:
  %whole = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %over = load i32, ptr %overflow
  %least = call i64 @word(ptr %expected, i64 1)
  %most = call i64 @word(ptr %expected, i64 2)
  %none_over = icmp eq i32 %over, 0
  %not_below = icmp sge i64 %whole, %least
  %not_above = icmp sle i64 %whole, %most
  %inside = and i1 %not_below, %not_above
  %ok = and i1 %inside, %none_over
  br i1 %ok, label %store, label %no
store:
  switch i64 %kind, label %as_int [ i64 4, label %as_double i64 5, label %as_single ]
as_int:
  store i64 %whole, ptr %slot
  ret i1 true
as_double:
  %d = sitofp i64 %whole to double
  store double %d, ptr %slot
  ret i1 true
as_single:
  %s = sitofp i64 %whole to float
  store float %s, ptr %slot
  ret i1 true
no:
  ret i1 false
}

declare double @llvm.fabs.f64(double)

; Whether the arguments are those that an entry is for. Values of numbers go to %slots, one word an argument.
define internal i1 @fits(ptr %entry_words, ptr %args, i64 %count, ptr %slots) {
entry:
  %array_type = call i64 @word(ptr %entry_words, i64 9)
  %first = getelementptr i64, ptr %entry_words, i64 $first
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %fitting ]
  %expected = phi ptr [ %first, %entry ], [ %following, %fitting ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %yes
look:
  %object = call ptr @argument(ptr %args, i64 %k)
  %kind = call i64 @word(ptr %expected, i64 0)
  switch i64 %kind, label %number [ i64 0, label %array i64 7, label %array i64 6, label %same ]
array:
  %ok = call i1 @fits_array(ptr %object, ptr %expected, i64 %array_type)
  br i1 %ok, label %array_fits, label %no
array_fits:
  %rank = call i64 @word(ptr %expected, i64 2)
  %twice = shl i64 %rank, 1
  %array_length = add i64 %twice, 4
  br label %fitting
same:
  %wanted = call ptr @pointer_word(ptr %expected, i64 1)
  %is_same = icmp eq ptr %wanted, %object
  br i1 %is_same, label %fitting, label %no
number:
  %slot = getelementptr i64, ptr %slots, i64 %k
  %is_number = call i1 @fits_number(ptr %object, ptr %expected, i64 %kind, ptr %entry_words, ptr %slot)
  br i1 %is_number, label %fitting, label %no
fitting:
  %length = phi i64 [ %array_length, %array_fits ], [ 3, %same ], [ 3, %number ]
  %following = getelementptr i64, ptr %expected, i64 %length
  %k1 = add i64 %k, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether an argument to write to shares memory with another argument in a way that the kernel does not allow.
; %spans: lowest and highest byte of each argument; %allowed: for each written argument a word for each argument
define internal i1 @conflicts(ptr %args, i64 %count, i64 %written, ptr %spans, ptr %allowed) {
entry:
  %first = sub i64 %count, %written
  br label %next_out
next_out:
  %o = phi i64 [ 0, %entry ], [ %o1, %out_done ]
  %more = icmp slt i64 %o, %written
  br i1 %more, label %out, label %no
out:
  %position = add i64 %first, %o
  %out_array = call ptr @argument(ptr %args, i64 %position)
  %out_data = call i64 @field(ptr %out_array, i64 16)
  %out_twice = shl i64 %position, 1
  %out_twice1 = or i64 %out_twice, 1
  %out_low_offset = call i64 @word(ptr %spans, i64 %out_twice)
  %out_high_offset = call i64 @word(ptr %spans, i64 %out_twice1)
  %out_low = add i64 %out_data, %out_low_offset
  %out_high = add i64 %out_data, %out_high_offset
  %row = mul i64 %o, %count
  br label %next
next:
  %k = phi i64 [ 0, %out ], [ %k1, %fine ]
  %more_arguments = icmp slt i64 %k, %count
  br i1 %more_arguments, label %look, label %out_done
look:
  %k1 = add i64 %k, 1
  %twice = shl i64 %k, 1
  %twice1 = or i64 %twice, 1
  %low_offset = call i64 @word(ptr %spans, i64 %twice)
  %high_offset = call i64 @word(ptr %spans, i64 %twice1)
  %is_empty = icmp sge i64 %low_offset, %high_offset
  %is_itself = icmp eq i64 %k, %position
  %skip = or i1 %is_empty, %is_itself
  br i1 %skip, label %fine, label %compare
compare:
  %array = call ptr @argument(ptr %args, i64 %k)
  %data = call i64 @field(ptr %array, i64 16)
  %low = add i64 %data, %low_offset
  %high = add i64 %data, %high_offset
  %before = icmp ule i64 %high, %out_low
  %after = icmp uge i64 %low, %out_high
  %apart = or i1 %before, %after
  br i1 %apart, label %fine, label %meet
meet:
  %at = add i64 %row, %k
  %may = call i64 @word(ptr %allowed, i64 %at)
  %may_be_same = icmp ne i64 %may, 0
  %is_same = icmp eq i64 %data, %out_data
  %is_in_place = and i1 %may_be_same, %is_same
  br i1 %is_in_place, label %fine, label %yes
fine:
  br label %next
out_done:
  %o1 = add i64 %o, 1
  br label %next_out
yes:
  ret i1 true
no:
  ret i1 false
}

; Gives up the first %count results.
define internal void @drop(ptr %results, i64 %count) {
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %done
one:
  %result = call ptr @pointer_word(ptr %results, i64 %k)
  call void @Py_DecRef(ptr %result)
  %k1 = add i64 %k, 1
  br label %next
done:
  ret void
}

; What the caller gets for the results: the only one, a tuple, or what the entry's function makes of the tuple.
define internal ptr @together(ptr %results, i64 %count, ptr %make) {
entry:
  %is_single = icmp eq i64 %count, 1
  %has_make = icmp ne ptr %make, null
  %not_made = xor i1 %has_make, true
  %plain = and i1 %is_single, %not_made
  br i1 %plain, label %single, label %several
single:
  %only = call ptr @pointer_word(ptr %results, i64 0)
  ret ptr %only
several:
  %tuple = call ptr @PyTuple_New(i64 %count)
  %failed = icmp eq ptr %tuple, null
  br i1 %failed, label %failure, label %next
failure:
  call void @drop(ptr %results, i64 %count)
  ret ptr null
next:
  %k = phi i64 [ 0, %several ], [ %k1, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %filled
one:
  %result = call ptr @pointer_word(ptr %results, i64 %k)
  %set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %k, ptr %result)
  %k1 = add i64 %k, 1
  br label %next
filled:
  br i1 %has_make, label %make_it, label %done
make_it:
  %made = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %make, ptr %tuple, ptr null)
  call void @Py_DecRef(ptr %tuple)
  ret ptr %made
done:
  ret ptr %tuple
}

; Runs the kernel of an entry that fits.
define internal ptr @run(ptr %entry_words, ptr %args, i64 %count, ptr %slots) {
entry:
  %parameters = call i64 @word(ptr %entry_words, i64 2)
  %cell = call ptr @pointer_word(ptr %entry_words, i64 3)
  %arrays = call i64 @word(ptr %entry_words, i64 6)
  %fail = call ptr @pointer_word(ptr %entry_words, i64 7)
  %tail = call ptr @pointer_word(ptr %entry_words, i64 8)
  %made = call i64 @word(ptr %entry_words, i64 11)
  %written = call i64 @word(ptr %entry_words, i64 12)
  %make = call ptr @pointer_word(ptr %entry_words, i64 13)
  %makers = getelementptr i64, ptr %tail, i64 %arrays
  %made_twice = shl i64 %made, 1
  %values = getelementptr i64, ptr %makers, i64 %made_twice
  %spans = getelementptr i64, ptr %values, i64 %parameters
  %count_twice = shl i64 %count, 1
  %allowed = getelementptr i64, ptr %spans, i64 %count_twice
  %has_conflict = call i1 @conflicts(ptr %args, i64 %count, i64 %written, ptr %spans, ptr %allowed)
  br i1 %has_conflict, label %nothing, label %pool
pool:
  %serial = icmp eq ptr %cell, null
  br i1 %serial, label %threads, label %parallel
parallel:
  %pool_run = call i64 @word(ptr %cell, i64 0)
  %pool_slots = call i64 @word(ptr %cell, i64 1)
  br label %threads
threads:
  %run = phi i64 [ 0, %pool ], [ %pool_run, %parallel ]
  %workers = phi i64 [ 1, %pool ], [ %pool_slots, %parallel ]
  %shared = call i64 @word(ptr %entry_words, i64 4)
  %private = call i64 @word(ptr %entry_words, i64 5)
  %privates = mul i64 %workers, %private
  %bytes = add i64 %shared, %privates
  %small = icmp ule i64 %bytes, $heap
  br i1 %small, label %prepare, label %nothing
nothing:
  %none = call ptr @none()
  ret ptr %none
prepare:
  %some_made = add i64 %made, 1
  %results = alloca i64, i64 %some_made, align 8
  br label %next_result
next_result:
  %r = phi i64 [ 0, %prepare ], [ %r1, %result_made ]
  %more_results = icmp slt i64 %r, %made
  br i1 %more_results, label %result, label %fill
result:
  %r_twice = shl i64 %r, 1
  %r_twice1 = or i64 %r_twice, 1
  %maker = call ptr @pointer_word(ptr %makers, i64 %r_twice)
  %shape = call ptr @pointer_word(ptr %makers, i64 %r_twice1)
  %array_made = call ptr @PyObject_CallObject(ptr %maker, ptr %shape)
  %failed = icmp eq ptr %array_made, null
  br i1 %failed, label %no_memory, label %result_made
no_memory:
  call void @drop(ptr %results, i64 %r)
  ret ptr null
result_made:
  %result_slot = getelementptr ptr, ptr %results, i64 %r
  store ptr %array_made, ptr %result_slot
  %r1 = add i64 %r, 1
  br label %next_result
fill:
  %is_little = icmp ule i64 %bytes, $stack
  br i1 %is_little, label %from_stack, label %from_heap
from_stack:
  %stacked = alloca i8, i64 %bytes, align 64
  br label %has_workspace
from_heap:
  %heap = call ptr @block(i64 %bytes)
  %no_heap = icmp eq ptr %heap, null
  br i1 %no_heap, label %leave, label %align
leave:
  call void @drop(ptr %results, i64 %made)
  br label %nothing
align:
  %heap_word = ptrtoint ptr %heap to i64
  %heap_above = add i64 %heap_word, 71
  %heap_line = and i64 %heap_above, -64
  %aligned = inttoptr i64 %heap_line to ptr
  br label %has_workspace
has_workspace:
  %workspace = phi ptr [ %stacked, %from_stack ], [ %aligned, %align ]
  %owned = phi ptr [ null, %from_stack ], [ %heap, %align ]
  %record = alloca [3 x i64], align 8
  store [3 x i64] zeroinitializer, ptr %record
  %length = add i64 %arrays, %parameters
  %length5 = add i64 %length, 5
  %words = alloca i64, i64 %length5, align 8
  store i64 %run, ptr %words
  %words1 = getelementptr i64, ptr %words, i64 1
  store ptr %workspace, ptr %words1
  %words2 = getelementptr i64, ptr %words, i64 2
  store ptr %record, ptr %words2
  %words3 = getelementptr i64, ptr %words, i64 3
  store i64 %workers, ptr %words3
  %pointers = getelementptr i64, ptr %words, i64 4
  br label %next_array
next_array:
  %k = phi i64 [ 0, %has_workspace ], [ %k1, %placed ]
  %more_arrays = icmp slt i64 %k, %arrays
  br i1 %more_arrays, label %array, label %next_parameter
array:
  %position = call i64 @word(ptr %tail, i64 %k)
  %is_result = icmp slt i64 %position, 0
  br i1 %is_result, label %from_result, label %from_argument
from_result:
  %number = xor i64 %position, -1
  %result_array = call ptr @pointer_word(ptr %results, i64 %number)
  %result_data = call i64 @field(ptr %result_array, i64 16)
  br label %placed
from_argument:
  %twice = shl i64 %position, 1
  %twice1 = or i64 %twice, 1
  %low = call i64 @word(ptr %spans, i64 %twice)
  %high = call i64 @word(ptr %spans, i64 %twice1)
  %is_number = icmp sgt i64 %low, %high
  br i1 %is_number, label %from_slot, label %from_array
from_slot:
  %slot = getelementptr i64, ptr %slots, i64 %position
  %slot_word = ptrtoint ptr %slot to i64
  br label %placed
from_array:
  %object = call ptr @argument(ptr %args, i64 %position)
  %data = call i64 @field(ptr %object, i64 16)
  br label %placed
placed:
  %pointer = phi i64 [ %result_data, %from_result ], [ %slot_word, %from_slot ], [ %data, %from_array ]
  %pointer_place = getelementptr i64, ptr %pointers, i64 %k
  store i64 %pointer, ptr %pointer_place
  %k1 = add i64 %k, 1
  br label %next_array
next_parameter:
  %p = phi i64 [ 0, %next_array ], [ %p1, %parameter ]
  %more_parameters = icmp slt i64 %p, %parameters
  br i1 %more_parameters, label %parameter, label %launch
parameter:
  %p1 = add i64 %p, 1
  %place = add i64 %arrays, %p
  %value = call i64 @word(ptr %values, i64 %p)
  %parameter_place = getelementptr i64, ptr %pointers, i64 %place
  store i64 %value, ptr %parameter_place
  br label %next_parameter
launch:
  %kernel = call ptr @pointer_word(ptr %entry_words, i64 0)
  %thread = call ptr @PyEval_SaveThread()
  call void %kernel(ptr %words)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_owned = icmp ne ptr %owned, null
  br i1 %is_owned, label %return_block, label %ask
return_block:
  call void @put_back(ptr %owned)
  br label %ask
ask:
  %site = load i64, ptr %record
  %is_error = icmp ne i64 %site, 0
  br i1 %is_error, label %error, label %finish
error:
  call void @drop(ptr %results, i64 %made)
  %index = call i64 @word(ptr %record, i64 1)
  %extent = call i64 @word(ptr %record, i64 2)
  %facts = call ptr (ptr, ...) @Py_BuildValue(ptr @three, i64 %site, i64 %index, i64 %extent)
  %no_facts = icmp eq ptr %facts, null
  br i1 %no_facts, label %raised, label %raise
raise:
  %never = call ptr @PyObject_CallObject(ptr %fail, ptr %facts)
  call void @Py_DecRef(ptr %facts)
  ret ptr %never
raised:
  ret ptr null
finish:
  %wrote = icmp sgt i64 %written, 0
  br i1 %wrote, label %given, label %collect
given:
  %last_position = sub i64 %count, 1
  %last = call ptr @argument(ptr %args, i64 %last_position)
  call void @Py_IncRef(ptr %last)
  ret ptr %last
collect:
  %value_made = call ptr @together(ptr %results, i64 %made, ptr %make)
  ret ptr %value_made
}

define ptr @fast_call(ptr %self, ptr %args, i64 %count) {
entry:
  %slots = alloca i64, i64 %count, align 8
  %head_word = call i64 @field(ptr %self, i64 16)
  %head = inttoptr i64 %head_word to ptr
  %entries = load i64, ptr %head
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %no ]
  %more = icmp slt i64 %k, %entries
  br i1 %more, label %look, label %nothing
look:
  %k1 = add i64 %k, 1
  %entry_words = call ptr @pointer_word(ptr %head, i64 %k1)
  %wanted = call i64 @word(ptr %entry_words, i64 1)
  %same_count = icmp eq i64 %count, %wanted
  br i1 %same_count, label %try, label %no
try:
  %ok = call i1 @fits(ptr %entry_words, ptr %args, i64 %count, ptr %slots)
  br i1 %ok, label %yes, label %no
no:
  br label %next
yes:
  %result = call ptr @run(ptr %entry_words, ptr %args, i64 %count, ptr %slots)
  ret ptr %result
nothing:
  %none = call ptr @none()
  ret ptr %none
}

define void @trial_kernel(ptr %words) {
  %x_word = call i64 @word(ptr %words, i64 4)
  %x = inttoptr i64 %x_word to ptr
  %out_word = call i64 @word(ptr %words, i64 6)
  %out = inttoptr i64 %out_word to ptr
  %parameter = call i64 @word(ptr %words, i64 7)
  %value = load i64, ptr %x
  %sum = add i64 %value, %parameter
  store i64 %sum, ptr %out
  ret void
}
""")
