/* smla/smla.h: the whole C ABI. */
#ifndef SMLA_SMLA_H
#define SMLA_SMLA_H

#include <smla/backend.h>
#include <smla/context.h>
#include <smla/formats.h>
#include <smla/layer.h>
#include <smla/model.h>
#include <smla/plan.h>
#include <smla/prepared_call.h>
#include <smla/rows.h>
#include <smla/stages.h>
#include <smla/types.h>

#endif /* SMLA_SMLA_H */
