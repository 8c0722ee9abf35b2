"""The quick way into kernels as LLVM IR text: a C function of Python that looks at NumPy arrays itself.

`fast_call(self, args, count)` has the calling convention of METH_FASTCALL. `self` is a NumPy array of 64-bit words: how
many entries there are, then their addresses. An entry describes one kind of call (all in words):

    0  address of the kernel                        5  bytes of private workspace per slot
    1  number of arguments                          6  numpy.empty
    2  number of i64 parameters                     7  the entry's own object
    3  address of [pool_run, slots], 0: serial      8  address of the tail
    4  bytes of shared workspace                    9  the type numpy.ndarray
                                                   10  for each argument: dtype object, rank, alignment mask,
                                                       then extent and stride of each dimension

    tail: for each kernel input the number of its argument; the arguments of numpy.empty for the result, as a tuple; the
          i64 parameters

The first entry that fits the arguments is run: the result is made by numpy.empty, workspace is taken from the stack,
the GIL is released around the kernel. The value is the result; None where no entry fits (the caller then takes the
careful way). Nothing that the function reads changes or goes while it runs: whoever calls it holds it, it holds `self`,
and `self` holds the entries (`fastcall.py`). The offsets are those of CPython's and NumPy's C structures;
`fastcall.py` tries the whole on examples before it trusts it.
"""

from __future__ import annotations

from string import Template

CALL = "fast_call"
TRIAL = "trial_kernel"

STACK_BYTES = 1 << 16
"""More workspace than this is not taken from the stack: such calls take the careful way."""


def fast_call_ir() -> str:
    """The module: `fast_call`, and `trial_kernel` (`out[0] = x[0] + parameter`, given x, y and out) to try it with."""
    return _MODULE.substitute(stack=STACK_BYTES)


_MODULE = Template("""\
@_Py_NoneStruct = external global i8
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallObject(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

define internal i64 @word(ptr %words, i64 %position) alwaysinline {
  %place = getelementptr i64, ptr %words, i64 %position
  %value = load i64, ptr %place
  ret i64 %value
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

; Whether one array is of the dtype, rank, alignment, extents and strides at %expected.
define internal i1 @fits_array(ptr %array, ptr %expected, i64 %array_type) {
entry:
  %type = call i64 @field(ptr %array, i64 8)
  %is_array = icmp eq i64 %type, %array_type
  br i1 %is_array, label %look, label %no
look:
  %dtype = call i64 @field(ptr %array, i64 56)
  %wanted_dtype = call i64 @word(ptr %expected, i64 0)
  %same_dtype = icmp eq i64 %dtype, %wanted_dtype
  %rank_place = getelementptr i8, ptr %array, i64 24
  %rank32 = load i32, ptr %rank_place
  %rank = sext i32 %rank32 to i64
  %wanted_rank = call i64 @word(ptr %expected, i64 1)
  %same_rank = icmp eq i64 %rank, %wanted_rank
  %data = call i64 @field(ptr %array, i64 16)
  %mask = call i64 @word(ptr %expected, i64 2)
  %low = and i64 %data, %mask
  %aligned = icmp eq i64 %low, 0
  %two = and i1 %same_dtype, %same_rank
  %three = and i1 %two, %aligned
  br i1 %three, label %dimensions, label %no
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
  %at = add i64 %twice, 3
  %at1 = add i64 %twice, 4
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

; Whether the arguments are those that an entry is for.
define internal i1 @fits(ptr %entry_words, ptr %args, i64 %count) {
entry:
  %wanted = call i64 @word(ptr %entry_words, i64 1)
  %same = icmp eq i64 %count, %wanted
  %array_type = call i64 @word(ptr %entry_words, i64 9)
  %first = getelementptr i64, ptr %entry_words, i64 10
  br i1 %same, label %next, label %no
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %fitting ]
  %expected = phi ptr [ %first, %entry ], [ %following, %fitting ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %yes
look:
  %array = call ptr @argument(ptr %args, i64 %k)
  %ok = call i1 @fits_array(ptr %array, ptr %expected, i64 %array_type)
  br i1 %ok, label %fitting, label %no
fitting:
  %rank = call i64 @word(ptr %expected, i64 1)
  %twice = shl i64 %rank, 1
  %length = add i64 %twice, 3
  %following = getelementptr i64, ptr %expected, i64 %length
  %k1 = add i64 %k, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; Runs the kernel of an entry that fits.
define internal ptr @run(ptr %entry_words, ptr %args) {
entry:
  %inputs = call i64 @word(ptr %entry_words, i64 1)
  %parameters = call i64 @word(ptr %entry_words, i64 2)
  %cell_word = call i64 @word(ptr %entry_words, i64 3)
  %cell = inttoptr i64 %cell_word to ptr
  %tail_word = call i64 @word(ptr %entry_words, i64 8)
  %tail = inttoptr i64 %tail_word to ptr
  %serial = icmp eq i64 %cell_word, 0
  br i1 %serial, label %threads, label %parallel
parallel:
  %pool_run = call i64 @word(ptr %cell, i64 0)
  %pool_slots = call i64 @word(ptr %cell, i64 1)
  br label %threads
threads:
  %pool = phi i64 [ 0, %entry ], [ %pool_run, %parallel ]
  %slots = phi i64 [ 1, %entry ], [ %pool_slots, %parallel ]
  %shared = call i64 @word(ptr %entry_words, i64 4)
  %private = call i64 @word(ptr %entry_words, i64 5)
  %privates = mul i64 %slots, %private
  %bytes = add i64 %shared, %privates
  %small = icmp ule i64 %bytes, $stack
  br i1 %small, label %prepare, label %too_large
too_large:
  %nothing = call ptr @none()
  ret ptr %nothing
prepare:
  %keeper_word = call i64 @word(ptr %entry_words, i64 7)
  %keeper = inttoptr i64 %keeper_word to ptr
  call void @Py_IncRef(ptr %keeper)
  %empty_word = call i64 @word(ptr %entry_words, i64 6)
  %empty = inttoptr i64 %empty_word to ptr
  %shape_word = call i64 @word(ptr %tail, i64 %inputs)
  %shape = inttoptr i64 %shape_word to ptr
  %result = call ptr @PyObject_CallObject(ptr %empty, ptr %shape)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %failure, label %fill
failure:
  call void @Py_DecRef(ptr %keeper)
  ret ptr null
fill:
  %workspace = alloca i8, i64 %bytes, align 64
  %record = alloca [3 x i64], align 8
  %length = add i64 %inputs, %parameters
  %length5 = add i64 %length, 5
  %words = alloca i64, i64 %length5, align 8
  store i64 %pool, ptr %words
  %words1 = getelementptr i64, ptr %words, i64 1
  store ptr %workspace, ptr %words1
  %words2 = getelementptr i64, ptr %words, i64 2
  store ptr %record, ptr %words2
  %words3 = getelementptr i64, ptr %words, i64 3
  store i64 %slots, ptr %words3
  %pointers = getelementptr i64, ptr %words, i64 4
  %result_data = call i64 @field(ptr %result, i64 16)
  %result_place = getelementptr i64, ptr %pointers, i64 %inputs
  store i64 %result_data, ptr %result_place
  br label %next_input
next_input:
  %k = phi i64 [ 0, %fill ], [ %k1, %input ]
  %more_inputs = icmp slt i64 %k, %inputs
  br i1 %more_inputs, label %input, label %next_parameter
input:
  %position = call i64 @word(ptr %tail, i64 %k)
  %array = call ptr @argument(ptr %args, i64 %position)
  %data = call i64 @field(ptr %array, i64 16)
  %pointer = getelementptr i64, ptr %pointers, i64 %k
  store i64 %data, ptr %pointer
  %k1 = add i64 %k, 1
  br label %next_input
next_parameter:
  %p = phi i64 [ 0, %next_input ], [ %p1, %parameter ]
  %more_parameters = icmp slt i64 %p, %parameters
  br i1 %more_parameters, label %parameter, label %launch
parameter:
  %p1 = add i64 %p, 1
  %slot = add i64 %inputs, %p1
  %value = call i64 @word(ptr %tail, i64 %slot)
  %parameter_place = getelementptr i64, ptr %pointers, i64 %slot
  store i64 %value, ptr %parameter_place
  br label %next_parameter
launch:
  %kernel_word = call i64 @word(ptr %entry_words, i64 0)
  %kernel = inttoptr i64 %kernel_word to ptr
  %thread = call ptr @PyEval_SaveThread()
  call void %kernel(ptr %words)
  call void @PyEval_RestoreThread(ptr %thread)
  call void @Py_DecRef(ptr %keeper)
  ret ptr %result
}

define ptr @fast_call(ptr %self, ptr %args, i64 %count) {
entry:
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
  %entry_word = call i64 @word(ptr %head, i64 %k1)
  %entry_words = inttoptr i64 %entry_word to ptr
  %ok = call i1 @fits(ptr %entry_words, ptr %args, i64 %count)
  br i1 %ok, label %yes, label %no
no:
  br label %next
yes:
  %result = call ptr @run(ptr %entry_words, ptr %args)
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
