// smla/smla.hpp: header-only C++20 wrapper of the C ABI, with handles that free themselves, errors as
// exceptions, and tensors from C++ memory. Argument structs come from the C headers; the wrapper sets
// struct_size and version.
//
//   smla::Context   engine and threads: smla::Cpu, smla::Gpu; every stage is a member, context.attend(args)
//   smla::Tensor, smla::Cache, smla::Buffer, smla::Workspace
//                   memory on a context's device: context.tensor<float>({4, 576}), context.workspace()
//   smla::tensor, smla::cache, smla::View
//                   views of vectors and arrays on the host
//   smla::Plan      data about a batch that the kernels of a step use, with typed views of the fields
//   smla::Layer     an attention layer of a checkpoint
//   smla::Session   a layer with its caches
//   smla::Backend   an attention backend by its published name, and smla::Metadata of its steps
//   smla::Call      a stage call or a forward call that is prepared once and run with varying addresses
//   smla::Error     exception of all functions: code, field, got, wanted
//
// Handles can be moved but not copied. A layer keeps its context alive, and a session its layer. A moved-from
// handle throws an Error when it is used.
//
// All names are in the inline namespace v0 of the ABI's major version, so their symbols differ from the
// symbols of another version and of the library.
#ifndef SMLA_SMLA_HPP
#define SMLA_SMLA_HPP

#include <smla/smla.h>
#include <smla/hpp/backend.hpp>
#include <smla/hpp/context.hpp>
#include <smla/hpp/error.hpp>
#include <smla/hpp/layer.hpp>
#include <smla/hpp/memory.hpp>
#include <smla/hpp/model.hpp>
#include <smla/hpp/plan.hpp>
#include <smla/hpp/prepared_call.hpp>
#include <smla/hpp/stages.hpp>
#include <smla/hpp/tensor.hpp>

// Members that a designated initializer of an argument struct omits are zero. GCC and Clang warn about
// omitted members under -Wextra, so this header turns the warning off. Define SMLA_KEEP_WARNINGS to keep it
// on.
#if !defined(SMLA_KEEP_WARNINGS)
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif

#endif  // SMLA_SMLA_HPP
